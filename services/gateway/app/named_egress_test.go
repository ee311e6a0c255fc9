package app_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/sandbox"
)

func TestWhereANamedSandboxMayConnectTo(t *testing.T) {
	w := newBoxes(t, nil)
	rules := map[string]any{"allow": []any{map[string]any{"host": "*.example.com"}, map[string]any{"cidr": "93.184.216.0/24", "ports": []any{22}}}}
	made := w.json("POST", "/sandboxes", map[string]any{"name": "demo", "egress": rules}).is(t, 201)["sandbox"].(map[string]any)
	s, err := w.peer.load("default", made["id"].(string))
	require.NoError(t, err)
	require.Equal(t, []string{"*.example.com", ""}, []string{s.Egress.GetAllow()[0].GetHost(), s.Egress.GetAllow()[1].GetHost()})
	require.Equal(t, []uint32{22}, s.Egress.GetAllow()[1].GetPorts())
	hosts := func(record map[string]any) (all []any) {
		for _, r := range record["egress"].(map[string]any)["allow"].([]any) {
			all = append(all, r.(map[string]any)["host"])
		}
		return all
	}
	require.Equal(t, []any{"*.example.com", nil}, hosts(made))

	changed := w.change("demo", `{"egress":{"allow":[{"host":"other.example"}]}}`).is(t, 200)
	require.Equal(t, []any{"other.example"}, hosts(changed))
	require.Equal(t, hosts(changed), hosts(w.send("GET", "/sandboxes/demo", nil).is(t, 200)))
	require.Contains(t, string(w.send("GET", "/sandboxes/demo/logs", nil).body), "egress has 1 rules now")
	for _, same := range []string{`{}`, `{"egress":null}`, `{"egress":{"allow":[{"host":"other.example"}]}}`} {
		require.Equal(t, hosts(changed), hosts(w.change("demo", same).is(t, 200)), same)
	}
	require.Empty(t, hosts(w.change("demo", `{"egress":{"allow":[]}}`).is(t, 200)), "nothing is allowed, and asks are recorded")
	require.NotContains(t, w.made("closed"), "egress")

	for body, field := range map[string]string{
		`{"egress":{"allow":[{"host":"127.0.0.1"}]}}`: "egress.allow[0].host", `{"egress":{"allow":[{"cidr":"10.0.0.0/8"}]}}`: "egress.allow[0].cidr",
		`{"egress":{"deny":[]}}`: "egress", `{"egress":7}`: "egress", `{"egress":{"allow":[{"host":"a.example","ports":[0]}]}}`: "egress.allow[0].ports",
	} {
		w.change("demo", body).refused(t, 422, "validation")
		require.Contains(t, string(w.change("demo", body).body), field)
	}
	w.json("POST", "/sandboxes", map[string]any{"name": "bad", "egress": map[string]any{"allow": []any{map[string]any{"cidr": "169.254.169.254/32"}}}}).refused(t, 422, "validation")

	require.NoError(t, w.decide("default", made["id"].(string), sandbox.Fail{Reason: "runtime_failed"}))
	w.change("demo", `{"egress":{"allow":[]}}`).refused(t, 409, "sandbox_failed")
}
