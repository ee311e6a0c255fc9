package check

import (
	"strconv"
	"time"

	"github.com/sandtrail/sandtrail/libs/metering"
	"github.com/sandtrail/sandtrail/libs/subject"
)

// sameHours: up to where hours were added up, each has what the events say.
func (w *world) sameHours() []finding {
	if w.Hours == nil {
		return nil
	}
	var f findings
	const what = "hours of usage"
	seq, errSeq := strconv.ParseUint(text(w.Hours.Mark["stream_seq"]), 10, 64)
	at, errAt := strconv.ParseInt(text(w.Hours.Mark["at"]), 10, 64)
	if errSeq != nil || errAt != nil {
		f.add(what, "their mark cannot be read")
		return f
	}
	ledger := metering.NewLedger()
	for _, e := range w.events {
		if agg, err := subject.ParseEvent(e.Subject); err == nil && e.Seq <= seq {
			ledger.Add(e, agg)
		}
	}
	have := metering.Windows{}
	for _, r := range w.Hours.Rows {
		hour, errHour := strconv.ParseInt(text(r["hour"]), 10, 64)
		quantity, errQuantity := strconv.ParseUint(text(r["quantity"]), 10, 64)
		if errHour != nil || errQuantity != nil {
			f.add(what, "a row cannot be read")
			continue
		}
		k := metering.Key{
			Tenant: text(r["tenant_id"]), Sandbox: text(r["sandbox_id"]), Session: text(r["session_id"]), Meter: metering.Meter(text(r["meter"])), Hour: hour,
		}
		if _, ok := have[k]; ok {
			f.add("hour of sandbox "+k.Sandbox, "there is more than one of %s", k.Meter)
		}
		have[k] = quantity
	}
	for _, d := range metering.Compare(ledger.Windows(metering.Hour(at)), have) {
		f.add("hour of sandbox "+d.Sandbox, "%s from %s has %d of %s, not %d", d.Session, time.UnixMilli(d.Hour).UTC().Format(time.RFC3339), d.Have, d.Meter, d.Want)
	}
	return f
}
