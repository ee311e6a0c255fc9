package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"
)

// request is the body of every call; each takes what it needs.
type request struct {
	Spec   Spec           `json:"spec"`
	Name   string         `json:"name"`
	Signal syscall.Signal `json:"signal"`
	Pause  time.Duration  `json:"pause"`
	Run    time.Duration  `json:"run"`
	Argv   []string       `json:"argv"`
}

type response struct {
	Error  string   `json:"error"`
	Output string   `json:"output"`
	Status []Status `json:"status"`
}

// Handler serves a set to Remote.
func Handler(s *Set) http.Handler {
	calls := map[string]func(ctx context.Context, q request, r *response) error{
		"start":  func(ctx context.Context, q request, _ *response) error { return s.Start(ctx, q.Spec) },
		"signal": func(ctx context.Context, q request, _ *response) error { return s.Signal(ctx, q.Name, q.Signal) },
		"wait":   func(ctx context.Context, q request, _ *response) error { return s.Wait(ctx, q.Name) },
		"slow":   func(ctx context.Context, q request, _ *response) error { return s.Slow(ctx, q.Name, q.Pause, q.Run) },
		"status": func(ctx context.Context, _ request, r *response) (err error) {
			r.Status, err = s.Status(ctx)
			return err
		},
		"run": func(ctx context.Context, q request, r *response) (err error) {
			r.Output, err = s.Run(ctx, q.Argv...)
			return err
		},
	}
	mux := http.NewServeMux()
	for name, call := range calls {
		mux.HandleFunc("POST /"+name, func(w http.ResponseWriter, h *http.Request) {
			var q request
			var r response
			err := json.NewDecoder(h.Body).Decode(&q)
			if err == nil {
				err = call(h.Context(), q, &r)
			}
			if err != nil {
				r.Error = err.Error()
			}
			_ = json.NewEncoder(w).Encode(r)
		})
	}
	return mux
}

// Remote is the set of another process, reached by a socket in the file system.
type Remote struct{ client *http.Client }

// Dial makes a Remote; the first call tells whether somebody answers.
func Dial(socket string) *Remote {
	var d net.Dialer
	return &Remote{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}}}
}

func (r *Remote) call(ctx context.Context, name string, q request) (response, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return response{}, err
	}
	h, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://node/"+name, bytes.NewReader(body))
	if err != nil {
		return response{}, err
	}
	answer, err := r.client.Do(h)
	if err != nil {
		return response{}, fmt.Errorf("ask the node to %s: %w", name, err)
	}
	defer answer.Body.Close()
	var a response
	text, err := io.ReadAll(answer.Body)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil {
		return response{}, fmt.Errorf("ask the node to %s: %w: %s", name, err, text)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// The methods are those of Set.
func (r *Remote) Start(ctx context.Context, spec Spec) error {
	_, err := r.call(ctx, "start", request{Spec: spec})
	return err
}

func (r *Remote) Signal(ctx context.Context, name string, sig syscall.Signal) error {
	_, err := r.call(ctx, "signal", request{Name: name, Signal: sig})
	return err
}

func (r *Remote) Wait(ctx context.Context, name string) error {
	_, err := r.call(ctx, "wait", request{Name: name})
	return err
}

func (r *Remote) Slow(ctx context.Context, name string, pause, run time.Duration) error {
	_, err := r.call(ctx, "slow", request{Name: name, Pause: pause, Run: run})
	return err
}

func (r *Remote) Status(ctx context.Context) ([]Status, error) {
	a, err := r.call(ctx, "status", request{})
	return a.Status, err
}

func (r *Remote) Run(ctx context.Context, argv ...string) (string, error) {
	a, err := r.call(ctx, "run", request{Argv: argv})
	return a.Output, err
}
