package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/permission"
)

func TestAWorkerTellsEveryMistakeAtOnce(t *testing.T) {
	key := filepath.Join(t.TempDir(), "seal.key")
	require.NoError(t, os.WriteFile(key, []byte("x"), 0o600))
	right := Worker{Name: "w", State: t.TempDir(), SealKeyFile: key, MaxSandboxes: 10}
	require.NoError(t, right.Mistakes())

	wrong := Worker{Name: "a.b", Region: "not\none", Labels: map[string]string{"": "x"}, Tenants: []string{"a.b"}, SealKeyFile: key + ".absent", Runsc: key + ".absent", MaxSandboxes: -1, Quota: map[string]uint64{"nonsense": 1}}
	err := wrong.Mistakes()
	for _, want := range []string{"worker: ", "region: ", "labels: ", "tenants: ", "--seal-key-file", "--runsc", "max sandboxes", "state directory", "nonsense"} {
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, (&Worker{Name: "w", State: "s"}).Mistakes(), "seal key file: must be set")
}

func TestAWorkerIsLetInByWhatItPrints(t *testing.T) {
	text, err := (&Worker{Name: "w", Rules: "$SANDTRAIL_NKEY_W"}).User()
	require.NoError(t, err)
	require.Contains(t, text, "nkey: $SANDTRAIL_NKEY_W")
	require.Contains(t, text, `"$KV.worker.w"`)
	require.Contains(t, text, permission.Inbox(permission.Host))
	_, err = (&Worker{Name: "w", Rules: "no key"}).User()
	require.Error(t, err)
	_, err = (&Worker{Name: "*", Rules: "$A"}).User()
	require.Error(t, err)
	require.Equal(t, permission.Inbox(permission.Host), (&Worker{}).flags().Credential.Inbox)
}
