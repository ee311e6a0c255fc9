package keeper

import (
	"sort"
	"strings"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment joins the image's, the sandbox's and the exec's variables; later ones win. PATH and HOME are always there.
func (k *Keeper) environment(extra map[string]string) []string {
	all := map[string]string{"PATH": defaultPath, "HOME": k.spec.MountPath}
	for _, kv := range k.spec.ImageEnv {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			// The image's HOME is that of its own user.
			if name != "HOME" {
				all[name] = value
			}
		}
	}
	for _, from := range []map[string]string{k.spec.Env, extra} {
		for name, value := range from {
			all[name] = value
		}
	}
	out := make([]string, 0, len(all))
	for name, value := range all {
		out = append(out, name+"="+value)
	}
	sort.Strings(out)
	return out
}
