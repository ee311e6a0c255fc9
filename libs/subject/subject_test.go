package subject_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/subject"
)

// FuzzValidToken compares with the rule as a regular expression.
func FuzzValidToken(f *testing.F) {
	for _, s := range []string{
		"", "a", "A-Z_09", strings.Repeat("x", 64), strings.Repeat("x", 65), "a.b", "a*", ">", "a b", "a\n", "\n", "é", "a\x00", "[", "@", "{", "`", "/", ":",
	} {
		f.Add(s)
	}
	rule := regexp.MustCompile(`\A[A-Za-z0-9_-]{1,64}\z`)
	f.Fuzz(func(t *testing.T, s string) {
		require.Equal(t, rule.MatchString(s), subject.ValidToken(s), "%q", s)
	})
}

// FuzzParseEvent: what parses is spelled again as it was read, and nothing in it could be more than one level.
func FuzzParseEvent(f *testing.F) {
	for _, s := range []string{
		"evt.acme.sandbox.s", "evt.acme.exec.s.x", "evt.acme.workspace.s", "evt.acme.tenant", "evt.acme.letter.l", "evt.acme.egress.s", "evt._none.log.i", "live.evt.acme.exec.s.x",
		"", "evt", "evt.acme", "evt.acme.", "evt.acme.exec.s", "evt.acme.exec.s.x.y", "evt.acme.exec.s.x.", "evt.acme.sandbox.s.t", "evt.acme.tenant.t",
		"evt..sandbox.s", "evt.acme.sandbox.", "evt.acme.sandbox.*", "evt.acme.exec.>.x", "cmd.acme.sandbox.s", "live.live.evt.acme.tenant", "evt.acme..s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := subject.ParseEvent(s)
		if err != nil {
			require.Equal(t, subject.Aggregate{}, a)
			return
		}
		require.NoError(t, a.Validate())
		require.Equal(t, strings.TrimPrefix(s, subject.LivePrefix), a.Subject())
	})
}

func TestParseEventIsTheInverseOfSubject(t *testing.T) {
	for _, a := range []subject.Aggregate{
		subject.Sandbox("acme", "s"), subject.Exec("acme", "s", "x"), subject.Workspace("acme", "s"), subject.Tenant("acme"),
		subject.Letter("acme", "l"), subject.Webhook("acme", "w"), subject.Egress("acme", "s"),
	} {
		for _, s := range []string{a.Subject(), subject.Live(a.Subject())} {
			got, err := subject.ParseEvent(s)
			require.NoError(t, err)
			require.Equal(t, a, got)
		}
	}
	for _, bad := range []string{"evt.acme.exec.s.x.y", "evt.acme.exec.s", "evt.acme.tenant.t", "evt.acme.other.s", "cmd.acme.sandbox.s", "evt.*.sandbox.s", "evt"} {
		_, err := subject.ParseEvent(bad)
		require.Error(t, err, bad)
	}
}

func TestParsingAnEventsSubjectAllocatesNothing(t *testing.T) {
	s := subject.Exec("acme", strings.Repeat("5", 36), strings.Repeat("e", 36)).Subject()
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := subject.ParseEvent(s); err != nil {
			t.Error(err)
		}
	}))
}

// FuzzTenantOf: whatever a subject is, it belongs to a tenant that there may be, or to nobody; and one of an event is of a kind that is
// known, or of none.
func FuzzTenantOf(f *testing.F) {
	for _, s := range []string{
		"cmd.sandbox.acme.s", "cmd.worker.w1.acme.s", "cmd.exec.w1.acme.s.x", "evt.acme.sandbox.s", "out.acme.s.x", "evt.acme.volume.v", "live.evt.acme.volume.v",
		"", "cmd", "evt._none.sandbox.s", "dlq.exec.c.evt.acme.sandbox.s", "evt..x.y", "cmd.sandbox..s",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tenant := subject.TenantOf(s)
		require.True(t, tenant == subject.NoTenant || subject.ValidTenant(tenant), "%q", tenant)
		require.NoError(t, subject.Letter(tenant, "l").Validate())
		a, err := subject.ParseEvent(s)
		if err == nil {
			require.False(t, subject.Future(s))
			if subject.ValidTenant(a.Tenant) && !strings.HasPrefix(s, subject.LivePrefix) {
				require.Equal(t, a.Tenant, tenant)
			}
		}
	})
}
