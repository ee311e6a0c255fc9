// Package launch is what a runtime driver hands to a keeper when it starts one: a Spec as JSON on standard input; and what
// the keeper answers on standard output: one line, a Result as JSON, once an exec in the sandbox would work or the start failed.
package launch

// WorkspaceFailed is the reason that a keeper gives for a sandbox that lives and whose workspace has failed: it takes no write any more, and
// what was written last is lost.
const WorkspaceFailed = "workspace_failed"

// KeptRoot is the directory below Spec.Dir in which a keeper leaves what was written outside of the workspace, when it is shut down with
// keep_root. It is there whole or not at all.
const KeptRoot = "root.kept"

// Spec describes one sandbox. It holds the values of environment variables: it is never written to a file or a log.
type Spec struct {
	SandboxID string `json:"sandbox_id"`
	// RuntimeID is the container id for runsc: fixed length, because runsc matches ids by prefix.
	RuntimeID string `json:"runtime_id"`
	Hostname  string `json:"hostname"`
	// Dir is the sandbox's own directory, STATE/sandboxes/<id>: socket, spool, bundle, overlay and runsc's root below it.
	Dir string `json:"dir"`
	// Runsc is the path of the gVisor binary, Toolbox the path of the static toolbox binary (the guest's init is a copy of it).
	Runsc   string `json:"runsc"`
	Toolbox string `json:"toolbox"`
	// Rootfs is the unpacked image, shared and read only; writes go to an overlay below Dir of at most OverlayBytes.
	Rootfs       string `json:"rootfs"`
	OverlayBytes uint64 `json:"overlay_bytes"`
	// Root is a KeptRoot of an earlier run on the same image, which the sandbox starts with; empty: none. What is in it is emptied once it
	// was read.
	Root string `json:"root,omitempty"`
	// Workspace is the ext4 image file of the workspace. The keeper mounts it in a mount namespace of its own (nosuid, nodev),
	// so that the mount goes when the keeper and the sandbox are gone. MountPath is where the guest sees it.
	// Rootless: it is a directory instead, and only watched not to hold more than WorkspaceBytes.
	Workspace      string `json:"workspace"`
	WorkspaceBytes uint64 `json:"workspace_bytes,omitempty"`
	MountPath      string `json:"mount_path"`
	// ImageEnv comes from the image's config, Env from the create request and wins.
	ImageEnv []string          `json:"image_env"`
	Env      map[string]string `json:"env"`
	// UID and GID that programs run as inside (never 0), and where guest ids start on the host.
	UID        uint32 `json:"uid"`
	GID        uint32 `json:"gid"`
	HostIDBase uint32 `json:"host_id_base"`
	// Rootless: the keeper runs as a common user, in a user namespace that has only that user, under the same id, and with all
	// capabilities there. HostIDBase means nothing then. Where no cgroup is to be had, the keeper watches the memory, and CPU
	// has no limit.
	Rootless bool `json:"rootless,omitempty"`
	// Warm: the sandbox is nobody's yet. SandboxID and Env are empty, nothing is started in it before a Configure call, which brings them
	// and the name inside, and what it used until then is nobody's. Dir may be renamed once the answer has come.
	Warm bool `json:"warm,omitempty"`
	// Limits. PIDs bounds the guest's processes; the host cgroup's own bound is only a backstop.
	CPUMillis   uint32 `json:"cpu_millis"`
	MemoryBytes uint64 `json:"memory_bytes"`
	PIDs        uint32 `json:"pids"`
	OpenFiles   uint64 `json:"open_files"`
	// MaxExecs at once, OutputCap bytes kept of each output stream of an exec, SpoolBytes kept in memory or on disk before
	// the program is held back.
	MaxExecs   uint32 `json:"max_execs"`
	OutputCap  uint64 `json:"output_cap"`
	SpoolBytes uint64 `json:"spool_bytes"`
	// StartTimeoutMs bounds the whole start; 0: 30 s. Over it the keeper removes what it made and answers start_deadline.
	StartTimeoutMs uint64 `json:"start_timeout_ms,omitempty"`
	// Control is the way to run programs: ControlSocket or ControlCommand; empty: the first that works, in this order.
	Control string `json:"control,omitempty"`
	// Cgroup is the name of the sandbox's cgroup below the caller's own, e.g. sandtrail/<runtime id>.
	Cgroup string `json:"cgroup"`
}

// The ways to run programs in a sandbox: the sentry's control socket, or the runsc program, which takes four times as long.
const (
	ControlSocket  = "socket"
	ControlCommand = "command"
)

// Phase is a part of the start, in microseconds.
type Phase struct {
	Name string `json:"name"`
	Took int64  `json:"took_us"`
}

// Result is the keeper's one answer on standard output.
type Result struct {
	OK bool `json:"ok"`
	// Reason is a fault.Reason and Message is safe to show; both empty on success.
	Reason  string  `json:"reason,omitempty"`
	Message string  `json:"message,omitempty"`
	PID     int     `json:"pid"`
	Phases  []Phase `json:"phases,omitempty"`
}
