package app_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/services/lifecycle/app"
)

func TestWhoTellsWhatPodsUseIsOneOfThree(t *testing.T) {
	for usage, ok := range map[string]bool{"": true, app.UsageKubelet: true, app.UsageProxy: true, app.UsageAgent: true, "guess": false} {
		c := kubeConfig(t, clusterFile)
		c.Kube.Usage = usage
		if err := c.Validate(); ok {
			require.NoError(t, err, usage)
		} else {
			require.ErrorContains(t, err, `pod usage: "guess"`)
		}
	}
}
