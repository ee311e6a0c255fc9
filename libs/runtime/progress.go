package runtime

import "context"

// Progress is what a start is waiting for.
type Progress struct {
	// Reason is a fault.Reason, empty while all goes as it should.
	Reason string
	// Message is for people: one sentence, safe to show to the sandbox's tenant.
	Message string
}

type progressKey struct{}

// WithProgress has whoever creates with the returned context tell f what it waits for. f may be called often, with the same again,
// and from several goroutines.
func WithProgress(ctx context.Context, f func(Progress)) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

// Report tells what a start waits for to whoever asked for it. Drivers call it as often as they like.
func Report(ctx context.Context, p Progress) {
	if f, ok := ctx.Value(progressKey{}).(func(Progress)); ok {
		f(p)
	}
}
