package sandboxapi

import (
	"fmt"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/sandbox"
	"github.com/sandtrail/sandtrail/services/gateway/internal/usecase"
)

// seen is shown with what became of its worker: a sandbox whose worker is silent is an error for as long as that lasts. That is a view and no
// event: whoever is cut off records itself what happened meanwhile, once it is back.
func seen(s sandbox.Sandbox, h *usecase.Hearing) record {
	out := shown(s)
	if now, last, silent := stateOf(s.State, s.Worker, h); silent {
		out.State, out.Reason = now, string(fault.ReasonWorkerOffline)
		out.ErrorMessage = fmt.Sprintf("worker %s was not heard of for over a minute; the sandbox is %s again once it is back", s.Worker, state(s.State))
		if !last.IsZero() {
			out.ErrorMessage = fmt.Sprintf("worker %s was heard of last at %s; the sandbox is %s again once it is back", s.Worker, last.Format(time.RFC3339), state(s.State))
		}
	}
	return out
}

// stateOf is the word for a state on a worker. A sandbox that is over or stopped runs nowhere: that its worker is silent says nothing of it.
func stateOf(s, worker string, h *usecase.Hearing) (word string, last time.Time, silent bool) {
	word = state(s)
	if worker == "" || word != statePending && word != stateStarting && word != stateRunning && word != stateStopping {
		return word, time.Time{}, false
	}
	if last, silent = h.Silent(worker); silent {
		word = stateError
	}
	return word, last, silent
}

// seenNow is seen with what is heard of workers now.
func (c *call) seenNow(s sandbox.Sandbox) (record, error) {
	heard, err := c.use.Hear(c.ctx)
	if err != nil {
		return record{}, err
	}
	out := seen(s, heard)
	return out, heard.Err()
}
