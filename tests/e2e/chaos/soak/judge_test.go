package soak

import (
	"bytes"
	"encoding/xml"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// made are looks every ten seconds for an hour, as f says by how far the hour is.
func made(f func(hour float64, random *rand.Rand) map[string]float64) []Row {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // to be made again
	var rows []Row
	for i := range 360 {
		rows = append(rows, Row{At: time.Unix(int64(10*i), 0), Figures: f(float64(i)/360, random)})
	}
	return rows
}

func TestVerdictsOfLines(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		want Kind
		f    func(hour float64, random *rand.Rand) map[string]float64
	}{
		"noise": {"gateway.rss_bytes", Flat, func(_ float64, r *rand.Rand) map[string]float64 {
			return map[string]float64{"gateway.rss_bytes": 40*mib + r.Float64()*20*mib}
		}},
		"the saw of a collector": {"gateway.rss_bytes", Flat, func(h float64, _ *rand.Rand) map[string]float64 {
			return map[string]float64{"gateway.rss_bytes": 40*mib + float64(int(h*360)%37)*mib}
		}},
		"warming up, then level": {"usage.heap_bytes", Flat, func(h float64, r *rand.Rand) map[string]float64 {
			return map[string]float64{"usage.heap_bytes": 10*mib + min(h, 0.4)*100*mib + r.Float64()*mib}
		}},
		"a few that stand out": {"exec.goroutines", Flat, func(_ float64, r *rand.Rand) map[string]float64 {
			v := 30.0
			if r.IntN(20) == 0 {
				v = 500
			}
			return map[string]float64{"exec.goroutines": v}
		}},
		"one descriptor a minute": {"exec.descriptors", Leaking, func(h float64, r *rand.Rand) map[string]float64 {
			return map[string]float64{"exec.descriptors": 30 + h*60 + float64(r.IntN(6))}
		}},
		"memory below the noise of a look": {"gc.anon_bytes", Leaking, func(h float64, r *rand.Rand) map[string]float64 {
			return map[string]float64{"gc.anon_bytes": 20*mib + h*24*mib + r.Float64()*10*mib}
		}},
		"falling": {"exec.threads", Flat, func(h float64, _ *rand.Rand) map[string]float64 {
			return map[string]float64{"exec.threads": 100 - 50*h}
		}},
		"bytes as many as events": {"store.EVT.disk_bytes", Growing, func(h float64, r *rand.Rand) map[string]float64 {
			return map[string]float64{"store.EVT.messages": h * 30000, "store.EVT.disk_bytes": h*30000*900 + r.Float64()*50*kib}
		}},
		"more bytes than the events explain": {"store.EVT.disk_bytes", Leaking, func(h float64, _ *rand.Rand) map[string]float64 {
			return map[string]float64{"store.EVT.messages": h * 30000, "store.EVT.disk_bytes": h * 30000 * 9000}
		}},
		"growing while what explains it stands": {"store.EVT.disk_bytes", Leaking, func(h float64, _ *rand.Rand) map[string]float64 {
			return map[string]float64{"store.EVT.messages": 1000, "store.EVT.disk_bytes": h * mib * 100}
		}},
		"level since it was started again": {"usage.rss_bytes", Flat, func(h float64, _ *rand.Rand) map[string]float64 {
			if h < 0.7 {
				return map[string]float64{"usage.pid": 1, "usage.rss_bytes": 10 * mib}
			}
			return map[string]float64{"usage.pid": 2, "usage.rss_bytes": 40 * mib}
		}},
		"leaking since it was started again": {"usage.rss_bytes", Leaking, func(h float64, _ *rand.Rand) map[string]float64 {
			if h < 0.7 {
				return map[string]float64{"usage.pid": 1, "usage.rss_bytes": 90 * mib}
			}
			return map[string]float64{"usage.pid": 2, "usage.rss_bytes": 20*mib + 100*mib*h}
		}},
		"too little of it": {"usage.rss_bytes", Short, func(h float64, _ *rand.Rand) map[string]float64 {
			if h < 0.99 {
				return map[string]float64{}
			}
			return map[string]float64{"usage.rss_bytes": h}
		}},
		"latency": {"load.exec_p50_ms", Shown, func(h float64, _ *rand.Rand) map[string]float64 {
			return map[string]float64{"load.exec_p50_ms": 100 * h}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range Judge(made(c.f)) {
				if v.Line == c.line {
					require.Equal(t, c.want, v.Kind, "%+v", v)
					return
				}
			}
			require.Fail(t, "no verdict")
		})
	}
}

func TestSlopeIsInUnitsOfAnHour(t *testing.T) {
	all := Judge(made(func(h float64, _ *rand.Rand) map[string]float64 {
		return map[string]float64{"store.EVT.messages": 5000 * h, "store.EVT.disk_bytes": 5000 * 700 * h, "load.execs": 1000 * h}
	}))
	by := map[string]Verdict{}
	for _, v := range all {
		by[v.Line] = v
	}
	require.InDelta(t, 5000*700, by["store.EVT.disk_bytes"].Slope, 1)
	require.InDelta(t, 700, by["store.EVT.disk_bytes"].Cost, 0.1, "bytes of an event")
	require.InDelta(t, 5, by["store.EVT.messages"].Cost, 0.01, "events of an exec")
	require.Contains(t, Table(all), "700 B of store.EVT.messages")
}

func TestFiguresAreReadAsTheyWereWritten(t *testing.T) {
	rows := made(func(h float64, r *rand.Rand) map[string]float64 {
		f := map[string]float64{"a": h}
		if r.IntN(2) == 0 {
			f["b"] = r.Float64()
		}
		return f
	})
	var b bytes.Buffer
	require.NoError(t, WriteCSV(&b, rows))
	again, err := ReadCSV(&b)
	require.NoError(t, err)
	require.Len(t, again, len(rows))
	for i, r := range rows {
		require.Equal(t, r.Figures, again[i].Figures)
		require.Equal(t, r.At.Sub(rows[0].At), again[i].At.Sub(again[0].At))
	}
}

func TestPlotIsSVGWithTheLinesNames(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, Plot(&b, made(func(h float64, r *rand.Rand) map[string]float64 {
		return map[string]float64{"gateway.goroutines": 50 * h, "exec.anon_bytes": r.Float64() * mib, "host.mount": 8, "load.execs": 100 * h}
	})))
	require.Contains(t, b.String(), ">gateway<")
	d := xml.NewDecoder(&b)
	for {
		if _, err := d.Token(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			return
		}
	}
}
