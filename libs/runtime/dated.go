package runtime

import (
	"context"
	"time"
)

// Dated is a driver that marks workspaces with the time after which they may be removed, where somebody may have put it off.
type Dated interface {
	// DeleteAfter of a workspace; zero where it has no mark, or is not there. An error, also about a mark that is no time, says that
	// nothing is known: then it stays.
	DeleteAfter(ctx context.Context, id string) (time.Time, error)
}

// Kept reports whether a driver keeps a workspace at a time, whatever the log says.
func Kept(ctx context.Context, d Driver, id string, now time.Time) (bool, error) {
	dated, ok := d.(Dated)
	if !ok {
		return false, nil
	}
	after, err := dated.DeleteAfter(ctx, id)
	return err != nil || now.Before(after), err
}
