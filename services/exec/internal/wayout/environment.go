package wayout

import (
	"fmt"
	"slices"

	"github.com/sandtrail/sandtrail/toolbox/connect"
)

// Environment is what programs find their way out by, for those names that are not taken. What is at the loopback address they reach themselves.
func Environment(taken []string) map[string]string {
	proxy := fmt.Sprintf("http://127.0.0.1:%d", connect.Way)
	const here = "localhost,127.0.0.1,::1"
	all := map[string]string{}
	for name, value := range map[string]string{
		"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": here,
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": here,
	} {
		if !slices.Contains(taken, name) {
			all[name] = value
		}
	}
	return all
}
