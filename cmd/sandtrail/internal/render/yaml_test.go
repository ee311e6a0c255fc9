package render_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/cmd/sandtrail/internal/render"
)

func TestYAML(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":1,"b":"x","c":null,"d":true}`:                    "a: 1\nb: x\nc: null\nd: true\n",
		`{"s":["a",{"k":"v","n":{"m":2}},[]],"e":{}}`:          "s:\n  - a\n  - k: v\n    \"n\":\n      m: 2\n  - []\ne: {}\n",
		`[{"a":"1"},{"a":"no"}]`:                               "- a: \"1\"\n- a: \"no\"\n",
		`{"t":"a: b","u":"two\nlines","v":"","w":"- x","é":1}`: "t: \"a: b\"\nu: \"two\\nlines\"\nv: \"\"\nw: \"- x\"\n\"é\": 1\n",
		`{"x":[[1,2],[3]]}`:                                    "x:\n  -\n    - 1\n    - 2\n  -\n    - 3\n",
		`[]`:                                                   "[]\n",
	} {
		var b strings.Builder
		require.NoError(t, render.YAML(&b, []byte(in)))
		require.Equal(t, want, strings.TrimPrefix(b.String(), " "), in)
	}
	require.Error(t, render.YAML(&strings.Builder{}, []byte(`{"a":`)))
}
