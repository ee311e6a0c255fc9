package sandboxapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
)

const (
	jobSnapshot = "SNAPSHOT"
	// snapshotWait is how long a snapshot is waited for.
	snapshotWait = 5 * time.Minute
	// maxImageName bounds the name of a snapshot, in bytes, as that of any image.
	maxImageName = 512
)

// snapped is the answer to a snapshot: image is what a create takes as image_id.
type snapped struct {
	Image string `json:"image"`
	// Digest, and how much of the image the sandbox itself has changed; absent while it is being made.
	Digest string `json:"digest,omitempty"`
	Bytes  uint64 `json:"bytes,omitempty"`
	Files  uint64 `json:"files,omitempty"`
	Pushed bool   `json:"pushed,omitempty"`
	// Sequence is the place in the log that it is of.
	Sequence uint64 `json:"sequence"`
	Status   string `json:"status"`
	JobID    string `json:"job_id"`
	Sandbox  record `json:"sandbox"`
}

// snapshot makes an image of a sandbox's root. Over snapshotWait it says RUNNING, and the job how far it is.
func (c *call) snapshot() error {
	id, err := c.box()
	if err != nil {
		return err
	}
	image := strings.TrimSpace(c.r.URL.Query().Get("image"))
	switch {
	case image == "":
		image = strings.ToLower(c.r.PathValue("name"))
	case len(image) > maxImageName || strings.ContainsFunc(image, func(r rune) bool { return r <= ' ' || r > '~' }):
		return invalid(map[string]string{"image": "must be the name of an image, repository:tag or registry/repository:tag"})
	}
	s, err := c.use.Snapshot(c.ctx, c.p, c.r.Header.Get(headerKey), id, image, snapshotWait)
	if err != nil {
		return err
	}
	status, code := jobCompleted, http.StatusOK
	if s.Snapshot.Pending() {
		status, code = jobRunning, http.StatusAccepted
	}
	return c.answer(code, snapped{
		Image: s.Snapshot.Image, Digest: s.Snapshot.Digest, Bytes: s.Snapshot.Bytes, Files: s.Snapshot.Files, Pushed: s.Snapshot.Pushed,
		Sequence: s.Snapshot.Seq, Status: status, JobID: turnID(jobSnapshot, s.ID, s.Snapshot.Seq), Sandbox: shown(s),
	})
}

// snapshotting follows a snapshot to its end. Without one at seq the job has no status.
func snapshotting(j *job, h eventlog.History, seq uint64) {
	for _, e := range h.Events {
		if e.Seq < seq || j.Status == jobCompleted || j.Status == jobFailed {
			continue
		}
		if _, ok := e.Body.(*eventsv1.SandboxSnapshotting); e.Seq == seq && !ok {
			return
		}
		switch b := e.Body.(type) {
		case *eventsv1.SandboxSnapshotting:
			if e.Seq != seq {
				continue
			}
			j.Status, j.CreatedAt, j.Result.Image, j.Result.Sequence = jobRunning, e.Time, b.GetImage(), seq
		case *eventsv1.SandboxSnapshotted:
			if b.GetSequence() != seq {
				continue
			}
			j.Result.Digest, j.Result.Bytes = b.GetDigest(), b.GetBytes()
			j.end(jobCompleted, "")
		case *eventsv1.SandboxSnapshotFailed:
			if b.GetSequence() != seq {
				continue
			}
			j.end(jobFailed, orElse(b.GetMessage(), b.GetReason()))
		case *eventsv1.SandboxFailed:
			j.end(jobFailed, orElse(b.GetMessage(), b.GetReason()))
		case *eventsv1.SandboxDestroying:
			j.end(jobFailed, "its sandbox was deleted before it was made ("+b.GetReason()+")")
		default:
			continue
		}
		j.UpdatedAt = e.Time
	}
}
