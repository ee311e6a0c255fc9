package mcpapi

import (
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func pointer[T any](v T) *T { return &v }

func between(least, most float64) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.Minimum, s.Maximum = &least, &most }
}

func atMost(length int) func(*jsonschema.Schema) {
	return func(s *jsonschema.Schema) { s.MaxLength = &length }
}

// bounds are those of arguments, by name. What the API says of a value in more detail it says itself.
var bounds = map[string]func(*jsonschema.Schema){
	"sandbox_id":      func(s *jsonschema.Schema) { s.Format, s.MaxLength = "uuid", pointer(64) },
	"execution_id":    func(s *jsonschema.Schema) { s.Format, s.MaxLength = "uuid", pointer(64) },
	"idempotency_key": func(s *jsonschema.Schema) { s.Pattern = "^[!-~]{1,200}$" },
	"timeout_seconds": between(1, 30*24*3600),
	// The API's own bounds.
	"idle_timeout_seconds": between(10, 30*24*3600),
	"wait_seconds":         between(0, maxWait.Seconds()),
	"cpus":                 func(s *jsonschema.Schema) { s.ExclusiveMinimum, s.Maximum = pointer(0.0), pointer(1000.0) },
	"path":                 atMost(4096),
	"working_dir":          atMost(4096),
	"command":              func(s *jsonschema.Schema) { s.MinLength, s.MaxLength = pointer(1), pointer(maxLine) },
	"code":                 func(s *jsonschema.Schema) { s.MinLength, s.MaxLength = pointer(1), pointer(maxStdin) },
	"stdin":                atMost(maxStdin),
	"content":              atMost(maxContent),
	"encoding":             func(s *jsonschema.Schema) { s.Enum = []any{utf8Text, base64Text} },
	"offset":               func(s *jsonschema.Schema) { s.Minimum = pointer(0.0) },
	"stdout_offset":        func(s *jsonschema.Schema) { s.Minimum = pointer(0.0) },
	"stderr_offset":        func(s *jsonschema.Schema) { s.Minimum = pointer(0.0) },
	"max_bytes":            between(1, maxPage),
	"limit":                between(1, maxEntries),
	"mode":                 func(s *jsonschema.Schema) { s.Pattern = "^0?[0-7]{3}$" },
}

// reads are the annotations of a tool that changes nothing, changes of one that does.
func reads(title string) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: pointer(false), OpenWorldHint: pointer(false)}
}

func changes(title string, destructive, idempotent bool) *mcp.ToolAnnotations {
	return &mcp.ToolAnnotations{Title: title, DestructiveHint: &destructive, IdempotentHint: idempotent, OpenWorldHint: pointer(false)}
}
