// Package ops is what operators and load balancers ask over HTTP: is it alive, is it ready, what are its metrics.
package ops

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check is one thing that readiness needs; it returns why it is not there.
type Check struct {
	Name string
	Fn   func() error
}

// Handler serves /healthz (the process answers), /readyz (every check passes: 200, otherwise 503 with the names of those that do
// not) and /metrics.
func Handler(gather prometheus.Gatherer, checks ...Check) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		failing := map[string]string{}
		for _, c := range checks {
			if err := c.Fn(); err != nil {
				failing[c.Name] = err.Error()
			}
		}
		if len(failing) > 0 {
			answer(w, http.StatusServiceUnavailable, map[string]any{"status": "not ready", "failing": failing})
			return
		}
		answer(w, http.StatusOK, map[string]any{"status": "ready"})
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(gather, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return mux
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the reader is gone if this fails
}
