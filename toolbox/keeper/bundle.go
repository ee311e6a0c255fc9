package keeper

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandtrail/sandtrail/toolbox/launch"
)

// guestInit is where the guest sees this binary.
const guestInit = "/.sandtrail/init"

// tmpShare of the sandbox's memory may be files in /tmp. More would let a program that fills /tmp end the whole sandbox.
const tmpShare = 2

// idRange is how many ids of the host a sandbox has.
const idRange = 65536

type object = map[string]any

// bundle is the OCI config. It has no value of the sandbox's environment: those stay in the keeper's memory.
func bundle(s launch.Spec, desk string) ([]byte, error) {
	uids := []object{{"containerID": 0, "hostID": s.HostIDBase, "size": idRange}}
	gids := uids
	var kept []string
	user, capabilities := object{"uid": 0, "gid": 0}, []string{"CAP_KILL"}
	if s.Warm {
		// To set the name inside once it is somebody's; init gives it up then.
		capabilities = append(capabilities, "CAP_SYS_ADMIN")
	}
	if s.Rootless {
		// The one id that there is. runsc wants init to start with it; init becomes the guest's root then, which no program may
		// signal.
		user = object{"uid": s.UID, "gid": s.GID}
		capabilities = append(capabilities, "CAP_SETUID", "CAP_SETGID")
		kept = capabilities
		uids = []object{{"containerID": s.UID, "hostID": os.Getuid(), "size": 1}}
		gids = []object{{"containerID": s.GID, "hostID": os.Getgid(), "size": 1}}
	}
	namespaces := []object{}
	for _, n := range []string{"pid", "mount", "ipc", "uts", "network", "user"} {
		namespaces = append(namespaces, object{"type": n})
	}
	tmp := s.MemoryBytes / tmpShare
	resources := object{}
	if s.CPUMillis > 0 {
		// Only tells the guest how many CPUs it has; the limit itself is our cgroup's.
		resources["cpu"] = object{"quota": int64(s.CPUMillis) * 100, "period": 100_000}
	}
	config := object{
		"ociVersion": "1.0.2",
		"hostname":   s.Hostname,
		"root":       object{"path": filepath.Join(desk, "rootfs"), "readonly": false},
		"process": object{
			"user": user, "cwd": "/", "args": []string{guestInit, "init"},
			"env":             []string{"GOMAXPROCS=1", "GOTRACEBACK=none"},
			"noNewPrivileges": true,
			"capabilities":    object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities, "inheritable": kept, "ambient": kept},
			"rlimits":         rlimits(s),
		},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc", "options": []string{"nosuid", "nodev", "noexec"}},
			{"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": []string{"nosuid", "nodev", "noexec", "ro"}},
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", tmp)}},
			{"destination": "/dev/shm", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev", "mode=1777", fmt.Sprintf("size=%d", tmp)}},
			{"destination": s.MountPath, "type": "bind", "source": filepath.Join(desk, "workspace"), "options": []string{"rw", "nosuid", "nodev"}},
			{"destination": guestInit, "type": "bind", "source": filepath.Join(desk, "init"), "options": []string{"ro", "nosuid", "nodev"}},
		},
		"linux": object{"namespaces": namespaces, "uidMappings": uids, "gidMappings": gids, "resources": resources},
	}
	return json.Marshal(config)
}

func rlimits(s launch.Spec) []object {
	limit := func(name string, n uint64) object { return object{"type": name, "soft": n, "hard": n} }
	out := []object{limit("RLIMIT_CORE", 0)}
	if s.OpenFiles > 0 {
		out = append(out, limit("RLIMIT_NOFILE", s.OpenFiles))
	}
	if s.PIDs > 0 {
		out = append(out, limit("RLIMIT_NPROC", uint64(s.PIDs)))
	}
	return out
}

// writeBundle writes the config into the bundle's directory.
func writeBundle(s launch.Spec, desk string) error {
	config, err := bundle(s, desk)
	if err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(desk, "bundle", "config.json"), config, 0o600); err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	return nil
}
