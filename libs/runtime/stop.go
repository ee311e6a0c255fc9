package runtime

import "context"

// Stopper is a driver whose sandboxes can be stopped and made again as they were: Create with Spec.Resume does that.
type Stopper interface {
	// Stop ends what runs of the sandbox, as Destroy does, and keeps what was written to its root file system beside its workspace. It
	// returns the usage of the run that it ended. Repeated it finishes what was left half done, and says the same again.
	//
	// fault.ReasonSandboxLost: the sandbox ended before its root could be kept, so that only its workspace is left. Any other error: it
	// may still run, and the call has to be repeated.
	Stop(ctx context.Context, id string) (Usage, error)
	// Note is the Spec.Note that the sandbox was made with, nil without one.
	Note(ctx context.Context, id string) ([]byte, error)
}
