package httpapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandtrail/sandtrail/libs/fault"
)

// empty is the answer without a body.
type empty struct{}

// streamOnly is the answer that is nothing but a stream of events.
type streamOnly struct{}

// schema is a JSON schema.
type schema map[string]any

func words(about string) schema { return schema{"type": "string", "description": about} }

func closed(required []string, properties schema) schema {
	s := schema{"type": "object", "additionalProperties": false, "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

var environment = schema{
	"type": "object", "maxProperties": 100, "additionalProperties": schema{"type": "string", "maxLength": 4096},
	"propertyNames": schema{"pattern": "^[A-Z_][A-Z0-9_]*$"}, "description": "Environment variables. Their values are never logged or recorded.",
}

// The bodies that routes take.
var (
	createSchema = closed(nil, schema{
		"desktop_os": schema{"type": "string", "enum": []string{"linux"}, "default": "linux"},
		"cpus":       schema{"type": []string{"string", "number"}, "description": "CPUs: 1, \"0.5\" or \"500m\"."},
		"memory":     words("Bytes as a Kubernetes quantity: 1Gi, 512M. At least 64Mi."),
		"isolation":  schema{"type": "string", "enum": isolations, "default": isolations[0], "description": "Both are served by gVisor."},
		"timeout_seconds": schema{
			"type": "integer", "minimum": 1, "description": "The sandbox's whole life, its start included.",
		},
		"idle_timeout_seconds": schema{
			"type": "integer", "minimum": 10, "description": "End it once nothing was done with it for so long, or up to half of that or a 500th of its age longer: no command runs or was started, no file call came.",
		},
		"image": words("Image to run; the deployment has a default."),
		"env":   environment,
	})
	extendSchema = closed([]string{"timeout_seconds"}, schema{
		"timeout_seconds": schema{"type": "integer", "minimum": 1, "description": "How long it is to live from now on, at least."},
	})
	executeSchema = closed([]string{"command"}, schema{
		"command": schema{
			"oneOf":       []schema{{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1, "items": schema{"type": "string"}}},
			"description": "Program and arguments, or a line for /bin/sh.",
		},
		"working_dir": words("Directory to run in; relative to the workspace."),
		"env":         environment,
		"timeout":     schema{"type": "integer", "minimum": 1, "description": "Milliseconds after which the command is ended."},
		"stdin":       words("What the command reads, at most 512 KiB."),
		"stream":      schema{"type": "boolean", "default": false, "description": "Answer with server-sent events instead."},
		"detach":      schema{"type": "boolean", "default": false, "description": "Answer once it is accepted, and not at its end."},
		"keep_stdin":  schema{"type": "boolean", "default": false, "description": "Keep standard input open for the stdin route; with detach or stream."},
	})
	uploadSchema = closed([]string{"files"}, schema{
		"files": schema{
			"type": "array", "minItems": 1, "maxItems": maxUploads,
			"items": closed([]string{"path", "content"}, schema{"path": words("Path in the workspace."), "content": words("The file, in base64.")}),
		},
	})
)

// parameters are those of queries, by name, or by route and name where one has its own.
var parameters = map[string]schema{
	"path":             words("Path in the workspace."),
	"stream":           {"type": "string", "enum": []string{"stdout", "stderr"}},
	"cursor":           words("next_cursor of the page before."),
	"limit":            {"type": "integer", "minimum": 1, "maximum": maxPage, "default": defaultPage},
	"list_files.limit": {"type": "integer", "minimum": 1, "maximum": maxEntries, "default": maxEntries},
	"idempotency_key":  keySchema,
	"mode":             {"type": "string", "pattern": "^[0-7]{1,4}$", "description": "Permissions in octal."},
	"modified":         words("Time of modification: RFC 3339, or seconds since 1970."),
	"recursive":        {"type": "boolean", "default": false},
	"close":            {"type": "boolean", "default": false, "description": "Close standard input behind the body."},
	"offset":           {"type": "integer", "minimum": 0, "description": "Where the body stands in standard input. What was taken before is not written again."},
}

var keySchema = schema{"type": "string", "pattern": "^[!-~]{1,200}$"}

// enums are the values of fields of answers, by type and name.
var enums = map[string][]any{
	"created.status":       {creating},
	"sandboxStatus.status": {creating, running, terminating, terminated, failed},
	"stopped.status":       {terminating, terminated},
	"accepted.state":       {"accepted"},
	"startup.start":        {"warm", "cold", nil},
	"execution.state":      {"accepted", running, "exited", "signaled", "timed_out", "cancelled", "start_failed", unknown},
	"execution.outcome":    {known, unknown, nil}, "execution.system_error": {streamLost, recordPending},
	"execution.stdout_encoding": {"utf-8", "base64"}, "execution.stderr_encoding": {"utf-8", "base64"},
	"event.type": {"stdout", "stderr", "exit", "error", "done"}, "event.encoding": {"utf-8", "base64"},
}

// common are the statuses of errors of every route that needs a credential; bodied those of every one that takes a body.
var (
	common = []int{
		http.StatusUnauthorized, http.StatusForbidden, http.StatusUnprocessableEntity, http.StatusInternalServerError,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout,
	}
	bodied = []int{http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType}
)

// Document is the OpenAPI 3.1 document of the API, as JSON.
func Document() ([]byte, error) {
	d := document{schemas: schema{}}
	problem := d.of(reflect.TypeFor[fault.Problem]())
	paths := map[string]map[string]any{}
	for _, r := range routes {
		path := Base + strings.TrimSuffix(r.path, "{$}")
		if paths[path] == nil {
			paths[path] = map[string]any{}
		}
		paths[path][strings.ToLower(r.method)] = d.operation(r, problem)
	}
	return json.MarshalIndent(map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{
			"title": "Sandtrail controller API", "version": "1",
			"description": "Sandboxes for the code of agents, and a receipt of everything that ran in them.",
		},
		"paths":    paths,
		"security": []any{map[string]any{"apiKey": []string{}}, map[string]any{"token": []string{}}},
		"components": map[string]any{
			"schemas": d.schemas,
			"securitySchemes": map[string]any{
				"apiKey": map[string]any{
					"type": "apiKey", "in": "header", "name": "Authorization", "description": "`Authorization: ApiKey KEY`",
				},
				"token": map[string]any{
					"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A JWT of the issuer that the deployment takes tokens of, if any.",
				},
			},
		},
	}, "", " ")
}

// document collects the schemas of types by their names.
type document struct{ schemas schema }

var inPath = regexp.MustCompile(`\{([a-z_]+)\}`)

func (d document) operation(r route, problem schema) map[string]any {
	op := map[string]any{"operationId": r.id, "summary": r.about}
	if r.open {
		op["security"] = []any{}
	} else {
		op["description"] = "Scope: " + strings.Join(r.scopes.Names(), " or ") + "."
	}
	var params []any
	for _, m := range inPath.FindAllStringSubmatch(r.path, -1) {
		params = append(params, map[string]any{"name": m[1], "in": "path", "required": true, "schema": schema{"type": "string", "format": "uuid"}})
	}
	for _, name := range r.query {
		s, own := parameters[r.id+"."+name]
		if !own {
			s = parameters[name]
		}
		params = append(params, map[string]any{"name": name, "in": "query", "required": slices.Contains(needed, r.id+"."+name), "schema": s})
	}
	if r.keyed {
		params = append(params, map[string]any{"name": headerKey, "in": "header", "schema": keySchema})
	}
	if params != nil {
		op["parameters"] = params
	}
	if r.body > 0 {
		body := r.request
		if body == nil {
			body = schema{"type": "string", "format": "binary"}
		}
		op["requestBody"] = map[string]any{"required": true, "content": map[string]any{r.media: map[string]any{"schema": body}}}
	}
	op["responses"] = d.responses(r, problem)
	return op
}

// needed are the parameters without which a route refuses.
var needed = []string{"read_file.path", "write_file.path", "delete_file.path", "output.stream", "execution_by_key.idempotency_key", "stdin.offset"}

func (d document) responses(r route, problem schema) map[string]any {
	all := map[string]any{}
	for status, v := range r.answers {
		content := map[string]any{mediaJSON: map[string]any{"schema": schema{"type": "object"}}}
		switch v.(type) {
		case empty:
			content = nil
		case streamOnly:
			content = map[string]any{}
		case nil:
			content = map[string]any{mediaBytes: map[string]any{"schema": schema{"type": "string", "format": "binary"}}}
		case map[string]any:
		default:
			content[mediaJSON] = map[string]any{"schema": d.of(reflect.TypeOf(v))}
		}
		if r.stream != nil {
			content[mediaSSE] = map[string]any{"schema": d.of(reflect.TypeOf(r.stream))}
		}
		all[strconv.Itoa(status)] = map[string]any{"description": http.StatusText(status)}
		if content != nil {
			all[strconv.Itoa(status)] = map[string]any{"description": http.StatusText(status), "content": content}
		}
	}
	for _, status := range statuses(r) {
		all[strconv.Itoa(status)] = map[string]any{
			"description": http.StatusText(status), "content": map[string]any{mediaJSON: map[string]any{"schema": problem}},
		}
	}
	return all
}

// statuses are those of a route's errors.
func statuses(r route) []int {
	all := slices.Clone(r.errors)
	if !r.open {
		all = append(all, common...)
	}
	if r.body > 0 {
		all = append(all, bodied...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// of gives the schema of a type, by reference where it is a struct.
func (d document) of(t reflect.Type) schema {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return schema{"type": "string", "format": "date-time"}
	case t.Kind() == reflect.Pointer:
		s := maps.Clone(d.of(t.Elem()))
		if ref, ok := s["$ref"]; ok {
			return schema{"oneOf": []schema{{"$ref": ref}, {"type": "null"}}}
		}
		s["type"] = []any{s["type"], "null"}
		return s
	case t.Kind() == reflect.Struct:
		return d.structOf(t)
	case t.Kind() == reflect.Slice:
		return schema{"type": "array", "items": d.of(t.Elem())}
	case t.Kind() == reflect.Map:
		return schema{"type": "object", "additionalProperties": d.of(t.Elem())}
	case t.Kind() == reflect.String:
		return schema{"type": "string"}
	case t.Kind() == reflect.Bool:
		return schema{"type": "boolean"}
	case t.Kind() == reflect.Float64:
		return schema{"type": "number"}
	default:
		return schema{"type": "integer"}
	}
}

func (d document) structOf(t reflect.Type) schema {
	ref := schema{"$ref": "#/components/schemas/" + t.Name()}
	if _, done := d.schemas[t.Name()]; done {
		return ref
	}
	properties, required := schema{}, []string{}
	d.schemas[t.Name()] = closed(required, properties) // before its fields, which may hold it again
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		s := d.of(f.Type)
		if values, ok := enums[t.Name()+"."+name]; ok {
			s["enum"] = values
		}
		properties[name] = s
		if options == "" {
			required = append(required, name)
		}
	}
	d.schemas[t.Name()] = closed(required, properties)
	return ref
}
