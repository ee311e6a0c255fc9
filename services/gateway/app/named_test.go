package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandtrail/sandtrail/libs/natstest"
	"github.com/sandtrail/sandtrail/libs/tenant"
	chunks "github.com/sandtrail/sandtrail/libs/transcript"
	commandsv1 "github.com/sandtrail/sandtrail/proto/gen/go/commands/v1"
	eventsv1 "github.com/sandtrail/sandtrail/proto/gen/go/events/v1"
	"github.com/sandtrail/sandtrail/services/gateway/app"
)

// boxes is a client of the API of named sandboxes.
type boxes struct {
	*world
	base string
	// headers of each call, `Name: value`.
	headers []string
}

// newBoxes is a world in development mode, seen by a caller without a credential.
func newBoxes(t testing.TB, keys map[string]string, change ...func(*app.Config)) *boxes {
	t.Helper()
	w := newWorld(t, keys, change...)
	return &boxes{world: w, base: "http://" + w.app.HTTP()}
}

func (b *boxes) with(headers ...string) *boxes {
	c := *b
	c.headers = headers
	return &c
}

// send makes a request; the path stands below /api/v1 unless it is /health.
func (b *boxes) send(method, path string, body io.Reader, headers ...string) answer {
	b.t.Helper()
	if path != "/health" {
		path = "/api/v1" + path
	}
	var res *http.Response
	data := []byte(nil)
	if body != nil {
		var err error
		data, err = io.ReadAll(body)
		require.NoError(b.t, err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	b.until(func() bool { // the listener is there before it is served
		req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+path, bytes.NewReader(data))
		require.NoError(b.t, err)
		for _, h := range append(append([]string{}, b.headers...), headers...) {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Add(name, value)
		}
		res, err = client.Do(req) //nolint:bodyclose // closed below: the last one is the only one without an error
		return err == nil
	})
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	a := answer{status: res.StatusCode, header: res.Header, body: got}
	require.NotEmpty(b.t, a.header.Get("X-Correlation-Id"))
	return a
}

func (b *boxes) json(method, path string, v any) answer {
	b.t.Helper()
	data, err := json.Marshal(v)
	require.NoError(b.t, err)
	return b.send(method, path, bytes.NewReader(data), "Content-Type: application/json")
}

// refused checks an error: status, reason, and that the message which published clients show is there.
func (a answer) refused(t testing.TB, status int, reason string) string {
	t.Helper()
	v := a.is(t, status)
	require.Equal(t, reason, v["error"].(map[string]any)["reason"], "%s", a.body)
	message, _ := v["message"].(string)
	require.NotEmpty(t, message)
	return message
}

func (b *boxes) made(name string) map[string]any {
	b.t.Helper()
	v := b.json("POST", "/sandboxes", map[string]any{"name": name, "region": "local", "provider_type": "local"}).is(b.t, 201)
	return v["sandbox"].(map[string]any)
}

func TestNamedSandboxesFromCreateToDelete(t *testing.T) {
	w := newBoxes(t, nil)
	require.Equal(t, "ok", w.send("GET", "/health", nil).is(t, 200)["status"])
	made := w.json("POST", "/sandboxes", map[string]any{
		"name": "demo", "region": "local", "provider_type": "local", "instance_type": "", "image_id": "", "ttl_seconds": 600, "cpu_cores": 0.5,
		"memory_mb": 256, "labels": map[string]string{"team": "a"}, "a_field_of_a_later_version": true,
	}).is(t, 201)
	require.Equal(t, "COMPLETED", made["status"])
	box := made["sandbox"].(map[string]any)
	require.Equal(t, "demo", box["name"])
	require.Equal(t, "RUNNING", box["state"])
	require.Equal(t, "default", box["owner"])
	require.Equal(t, natstest.Worker, box["poder_id"])
	require.Equal(t, json.Number("600"), box["ttl_seconds"])
	job := w.send("GET", "/jobs/"+made["job_id"].(string), nil).is(t, 200)
	require.Equal(t, []any{"CREATE", "COMPLETED", "demo", ""}, []any{job["type"], job["status"], job["sandbox_name"], job["error_message"]})

	got := w.send("GET", "/sandboxes/demo", nil).is(t, 200)
	require.Equal(t, box["id"], got["id"])
	for _, field := range []string{
		"id", "name", "region", "provider_type", "instance_type", "image_id", "state", "ip", "owner", "ttl_seconds", "poder_id", "container_id", "arch", "os",
		"os_version", "labels", "created_at", "last_activity",
	} {
		require.Contains(t, got, field)
	}
	require.Equal(t, box["id"], w.send("GET", "/sandboxes/"+box["id"].(string), nil).is(t, 200)["id"], "an id is a name too")
	w.json("POST", "/sandboxes", map[string]any{"name": "demo"}).refused(t, 409, "name_taken")

	deleted := w.send("DELETE", "/sandboxes/demo", nil).is(t, 200)
	require.Equal(t, "TERMINATED", deleted["state"])
	require.Equal(t, "COMPLETED", w.send("GET", "/jobs/"+deleted["job_id"].(string), nil).is(t, 200)["status"])
	w.send("GET", "/sandboxes/demo", nil).refused(t, 404, "sandbox_not_found")
	w.send("DELETE", "/sandboxes/demo", nil).refused(t, 404, "sandbox_not_found")
	require.NotEqual(t, box["id"], w.made("demo")["id"], "identity is the id, never the name")
}

func TestAsyncCreatesAnswerAtOnceWithTheJob(t *testing.T) {
	w := newBoxes(t, nil)
	made := w.json("POST", "/sandboxes", map[string]any{"name": "late", "image_id": "slow", "async": true}).is(t, 202)
	require.Equal(t, "PENDING", made["status"])
	job := w.send("GET", "/jobs/"+made["job_id"].(string), nil).is(t, 200)
	require.Equal(t, "PENDING", job["status"])
	require.Equal(t, "PENDING", w.send("GET", "/sandboxes/late", nil).is(t, 200)["state"])
	w.send("DELETE", "/sandboxes/late", nil).is(t, 200)
	job = w.send("GET", "/jobs/"+made["job_id"].(string), nil).is(t, 200)
	require.Equal(t, "FAILED", job["status"])
	require.Contains(t, job["error_message"], "deleted before it was up")
	w.send("GET", "/jobs/create-none", nil).refused(t, 404, "job_not_found")
	w.json("POST", "/sandboxes", map[string]any{"name": "no", "image_id": "refused", "async": true}).refused(t, 429, "quota")
}

// One name from 20 clients at once: one wins, 19 conflicts.
func TestOneNameFromManyClientsIsWonOnce(t *testing.T) {
	w := newBoxes(t, nil)
	statuses := make([]int, 20)
	var all sync.WaitGroup
	for i := range statuses {
		all.Go(func() {
			statuses[i] = w.json("POST", "/sandboxes", map[string]any{"name": "one", "async": true}).status
		})
	}
	all.Wait()
	count := map[int]int{}
	for _, s := range statuses {
		count[s]++
	}
	require.Equal(t, map[int]int{202: 1, 409: 19}, count)
}

func TestWhatACreateMayNotAskFor(t *testing.T) {
	w := newBoxes(t, nil)
	for body, said := range map[string]string{
		`{"name":""}`:    "name must be 1 to 64",
		`{"name":"a/b"}`: "name must be 1 to 64",
		`{"name":"-a"}`:  "name must be 1 to 64",
		`{"name":"` + strings.Repeat("a", 65) + `"}`:    "name must be 1 to 64",
		`{"name":"execute"}`:                            "name is the name of a route",
		`{"name":"a","provider_type":"a\u0001"}`:        "provider_type must be at most 64 printable ASCII characters",
		`{"name":"a","cpu_cores":-1}`:                   "cpu_cores must be",
		`{"name":"a","cpu_cores":1000000}`:              "cpu_cores is over the maximum",
		`{"name":"a","memory_mb":1}`:                    "memory_mb must be at least",
		`{"name":"a","ttl_seconds":-1}`:                 "ttl_seconds must be",
		`{"name":"a","ttl_seconds":2000000000}`:         "ttl_seconds is over the maximum",
		`{"name":"a","labels":{"":"x"}}`:                "labels",
		`{"name":7}`:                                    "name must be of another type",
		`{"name":"a","region":"` + "\u00e9" + `"}`:      "region must be",
		`{"name":"a","image_id":"` + "x\\u0000y" + `"}`: "image_id must not hold a zero byte",
	} {
		require.Contains(t, w.send("POST", "/sandboxes", strings.NewReader(body)).refused(t, 422, "validation"), said, body)
	}
	w.send("POST", "/sandboxes", strings.NewReader(`{"name":`)).refused(t, 400, "malformed_request")
	require.Zero(t, w.peer.count("cmd."), "nothing was begun")
}

func TestListsNarrowByLabelStateAndName(t *testing.T) {
	w := newBoxes(t, nil)
	w.views("default", 8, now())
	w.views("globex", 8, now())
	list := func(query string) int {
		all, _ := w.send("GET", "/sandboxes"+query, nil).is(t, 200)["sandboxes"].([]any)
		return len(all)
	}
	require.Equal(t, 6, list(""), "two are gone")
	require.Equal(t, 2, list("?state=TERMINATED"))
	require.Equal(t, 4, list("?state=RUNNING&state=ERROR"))
	require.Zero(t, list("?label=team=a"))
	kv, err := w.JS.KeyValue(t.Context(), "sandbox")
	require.NoError(t, err)
	v := &commandsv1.SandboxView{}
	v.TenantId, v.SandboxId, v.State = "default", "0b8f3c2a-1d4e-4b6f-8c7d-9e0f1a2b3c4d", "ready"
	v.Requested = &eventsv1.SandboxRequested{Name: "web", Labels: map[string]string{"team": "a", "tier": "b"}}
	data, err := proto.Marshal(v)
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "default."+v.GetSandboxId(), data)
	require.NoError(t, err)
	require.Equal(t, 1, list("?label=team=a"))
	require.Equal(t, 1, list("?label=team=a&label=tier=b&name=web"))
	require.Zero(t, list("?label=team=a&label=tier=c"))
	w.send("GET", "/sandboxes?state=BUSY", nil).refused(t, 422, "validation")
	w.send("GET", "/sandboxes?label=x", nil).refused(t, 422, "validation")
}

func TestExecuteAnswersWhatTheCommandDid(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.script("bash", func(x *execution) {
		x.write(chunks.Stdout, []byte("o\n"))
		x.write(chunks.Stderr, []byte("e\xff"))
		x.complete(3)
	})
	v := w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"language": "bash", "code": "x", "timeout": 30}).is(t, 200)
	require.Equal(t, json.Number("3"), v["exit_code"])
	require.Equal(t, []any{"o\ne\uFFFD", "o\n", "e\uFFFD", "Zf8=", false, "exited"},
		[]any{v["output"], v["stdout"], v["stderr"], v["stderr_base64"], v["truncated"], v["reason"]})
	require.NotContains(t, v, "stdout_base64")
	require.Contains(t, v, "started_at")
	require.Contains(t, v, "ended_at")
	for language, program := range map[string]string{"python": "python3", "node": "node"} {
		w.peer.script(program, func(x *execution) {
			x.write(chunks.Stdout, []byte(strings.Join(x.cmd.GetStart().GetSpec().GetArgs(), " ")))
			x.complete(0)
		})
		got := w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"language": language, "code": "1+1"}).is(t, 200)
		require.Contains(t, got["stdout"], "1+1")
	}
	// Long code is no argument.
	long := w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"language": "python", "code": strings.Repeat("#", 300<<10)}).is(t, 200)
	require.Equal(t, "-", long["stdout"])
	require.Contains(t, w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"language": "perl", "code": "x"}).refused(t, 422, "validation"), "bash, python or node")
	w.json("POST", "/sandboxes/execute?sandbox=other", map[string]any{"code": "x"}).refused(t, 404, "sandbox_not_found")
	w.json("POST", "/sandboxes/execute", map[string]any{"code": "x"}).refused(t, 422, "validation")
	w.peer.script("bash", func(x *execution) { x.lose() })
	w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "x"}).refused(t, 500, "exec_lost")
}

func TestFilesOfNamedSandboxes(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.set(func() { w.peer.dirs["/workspace/data"] = true })
	form := func(files ...[3]string) (io.Reader, string) {
		var b bytes.Buffer
		m := multipart.NewWriter(&b)
		for _, f := range files {
			part, err := m.CreateFormFile(f[0], f[1])
			require.NoError(t, err)
			_, err = io.WriteString(part, f[2])
			require.NoError(t, err)
		}
		require.NoError(t, m.Close())
		return &b, "Content-Type: " + m.FormDataContentType()
	}
	put := func(path string, files ...[3]string) answer {
		body, media := form(files...)
		return w.send("POST", "/sandboxes/demo/toolbox/files/"+path, body, media)
	}
	big := strings.Repeat("x\x00\xff", 400_000)
	up := put("upload?path=%2Fworkspace%2Fa.bin", [3]string{"file", "/workspace/a.bin", big}).is(t, 200)
	require.Equal(t, []any{"/workspace/a.bin", json.Number(fmt.Sprint(len(big)))}, []any{up["path"], up["size"]})
	require.Len(t, up["sha256"], 64)
	up = put("upload?path=%2Fworkspace%2Fdata", [3]string{"file", "b.txt", "b"}).is(t, 200)
	require.Equal(t, "/workspace/data/b.txt", up["path"], "a directory takes it under its own name")
	all := put("bulk-upload?path=%2Fworkspace%2Fdata", [3]string{"c.txt", "c.txt", "c"}, [3]string{"d.txt", "d.txt", "d"}).is(t, 200)
	require.Len(t, all["results"], 2)
	require.Equal(t, true, all["success"])
	for path, want := range map[string]string{"/workspace/a.bin": big, "/workspace/data/b.txt": "b", "/workspace/data/d.txt": "d"} {
		got := w.send("GET", "/sandboxes/demo/toolbox/files/download?path="+url.QueryEscape(path), nil)
		require.Equal(t, 200, got.status)
		require.Equal(t, want, string(got.body))
		require.Equal(t, "application/octet-stream", got.header.Get("Content-Type"))
	}
	listed := w.send("GET", "/sandboxes/demo/toolbox/files", nil).is(t, 200)
	require.Equal(t, "/workspace", listed["path"])
	require.Equal(t, listed["files"], listed["entries"])
	require.Equal(t, "/workspace/f", listed["files"].([]any)[0].(map[string]any)["path"])
	require.Equal(t, "f", w.send("GET", "/sandboxes/demo/toolbox/files/info?path=f", nil).is(t, 200)["name"])
	w.send("GET", "/sandboxes/demo/toolbox/files/info?path=none", nil).refused(t, 404, "path_not_found")
	require.Equal(t, []any{"/workspace/f"}, w.send("GET", "/sandboxes/demo/toolbox/files/search?pattern=*", nil).is(t, 200)["files"])
	w.send("GET", "/sandboxes/demo/toolbox/files/download", nil).refused(t, 422, "validation")
	w.send("GET", "/sandboxes/demo/toolbox/files/search?pattern=%5B", nil).refused(t, 422, "validation")
	put("upload?path=x", [3]string{"other", "x", "x"}).refused(t, 422, "validation")
	w.send("POST", "/sandboxes/demo/toolbox/files/upload?path=x", strings.NewReader("x")).refused(t, 415, "unsupported_media_type")
	w.send("DELETE", "/sandboxes/demo/toolbox/files/delete?path=%2Fworkspace%2F.", nil).refused(t, 422, "validation")
}

func TestWorkersAreListed(t *testing.T) {
	w := newBoxes(t, nil)
	kv, err := w.JS.KeyValue(t.Context(), "worker")
	require.NoError(t, err)
	for name, age := range map[string]int{"w1": 0, "w2": 20} {
		data, err := proto.Marshal(&commandsv1.WorkerStatus{
			Worker: name, Driver: "gvisor", Time: timestamppb.New(now().Add(-time.Duration(age) * time.Second)), CpuMillis: 2000, MemoryBytes: 1 << 30, Sandboxes: 1, MaxSandboxes: 9,
		})
		require.NoError(t, err)
		_, err = kv.Put(t.Context(), name, data)
		require.NoError(t, err)
	}
	all, _ := w.send("GET", "/poders", nil).is(t, 200)["poders"].([]any)
	require.Len(t, all, 2)
	one := w.send("GET", "/poders/w1", nil).is(t, 200)
	require.Equal(t, "ONLINE", one["state"])
	require.Equal(t, json.Number("2"), one["resources"].(map[string]any)["cpu_cores"])
	require.Equal(t, json.Number("1"), one["usage"].(map[string]any)["containers"])
	require.Equal(t, "OFFLINE", w.send("GET", "/poders/w2", nil).is(t, 200)["state"])
	w.send("GET", "/poders/w3", nil).refused(t, 404, "worker_not_found")

	// One that is silent is taken from the list, and listed again once it is heard of.
	w.send("DELETE", "/poders/w3", nil).refused(t, 404, "worker_not_found")
	require.Contains(t, w.send("DELETE", "/poders/w1", nil).refused(t, 409, "illegal_state"), "is ONLINE")
	require.Equal(t, "w2", w.send("DELETE", "/poders/w2", nil).is(t, 200)["id"])
	w.send("GET", "/poders/w2", nil).refused(t, 404, "worker_not_found")
	w.send("DELETE", "/poders/w2", nil).refused(t, 404, "worker_not_found")
	w.send("GET", "/poders/w1", nil).is(t, 200)
	data, err := proto.Marshal(&commandsv1.WorkerStatus{Worker: "w2", Time: timestamppb.New(now())})
	require.NoError(t, err)
	_, err = kv.Put(t.Context(), "w2", data)
	require.NoError(t, err)
	require.Equal(t, "ONLINE", w.send("GET", "/poders/w2", nil).is(t, 200)["state"])
}

// In development mode no credential is asked for, of programs on this host; with keys every route asks.
func TestWhoMayCallTheNamedAPI(t *testing.T) {
	dev := newBoxes(t, nil)
	dev.with("X-Sandtrail-Tenant: acme").made("mine")
	dev.send("GET", "/sandboxes/mine", nil).refused(t, 404, "sandbox_not_found")
	for _, h := range []string{"Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Origin: null"} {
		dev.send("GET", "/sandboxes", nil, h).refused(t, 403, "key_missing")
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, dev.base+"/api/v1/sandboxes", http.NoBody)
	require.NoError(t, err)
	req.Host = "rebound.example"
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, 403, res.StatusCode)

	w := newBoxes(t, twoTenants)
	for _, headers := range [][]string{
		{"Authorization: Bearer " + secret("alice")},
		{"X-Sandrpod-Token: " + secret("alice")},
		{"Authorization: ApiKey " + secret("alice")},
		{"X-Sandrpod-Token: " + secret("alice"), "Authorization: Bearer of another service"},
	} {
		w.with(headers...).send("GET", "/sandboxes/none", nil).refused(t, 404, "sandbox_not_found")
	}
	w.send("GET", "/sandboxes", nil).refused(t, 401, "key_missing")
	w.with("Authorization: Bearer wrong").send("GET", "/sandboxes", nil).refused(t, 401, "key_invalid")
	w.with("X-Sandrpod-Token: wrong", "Authorization: Bearer "+secret("alice")).send("GET", "/sandboxes", nil).refused(t, 401, "key_invalid")
	alice, bob := w.with("Authorization: Bearer "+secret("alice")), w.with("Authorization: Bearer "+secret("bob"))
	id, _ := alice.made("shared")["id"].(string)
	bob.made("shared")
	for _, path := range []string{
		"/sandboxes/" + id, "/sandboxes/" + id + "/logs", "/sandboxes/" + id + "/toolbox/files", "/sandboxes/" + id + "/toolbox/info", "/sandboxes/" + id + "/toolbox/metrics",
		"/sandboxes/" + id + "/toolbox/files/download?path=x", "/sandboxes/stream?sandbox=" + id + "&code=x",
		"/sandboxes/" + id + "/toolbox/proxy/80/",
	} {
		bob.send("GET", path, nil).refused(t, 404, "sandbox_not_found")
	}
	bob.send("DELETE", "/sandboxes/"+id, nil).refused(t, 404, "sandbox_not_found")
	bob.json("POST", "/sandboxes/"+id+"/preview", map[string]any{"port": 80}).refused(t, 404, "sandbox_not_found")
	bob.json("POST", "/sandboxes/execute?sandbox="+id, map[string]any{"code": "x"}).refused(t, 404, "sandbox_not_found")
	bob.send("GET", "/jobs/create-"+id, nil).refused(t, 404, "job_not_found")
	require.Equal(t, "RUNNING", alice.send("GET", "/sandboxes/shared", nil).is(t, 200)["state"])
}

func TestScopesOfTheNamedAPI(t *testing.T) {
	w := newBoxes(t, nil)
	key := mint(w.world, "acme", tenant.Inspect)
	w.until(func() bool {
		return w.with("Authorization: Bearer "+key.Text).send("GET", "/sandboxes", nil).status == 200
	})
	weak := w.with("X-Sandrpod-Token: " + key.Text)
	weak.json("POST", "/sandboxes", map[string]any{"name": "a"}).refused(t, 403, "scope_missing")
	weak.json("POST", "/sandboxes/execute?sandbox=a", map[string]any{"code": "x"}).refused(t, 403, "scope_missing")
	weak.send("DELETE", "/sandboxes/a", nil).refused(t, 403, "scope_missing")
	weak.send("GET", "/sandboxes/a/toolbox/files", nil).refused(t, 403, "scope_missing")
	weak.send("GET", "/sandboxes/a/toolbox/proxy/80/", nil).refused(t, 403, "scope_missing")
	weak.json("POST", "/sandboxes/a/preview", map[string]any{"port": 80}).refused(t, 403, "scope_missing")
	weak.send("GET", "/tokens", nil).refused(t, 403, "scope_missing")
	weak.send("POST", "/tokens", nil).refused(t, 403, "scope_missing")
	weak.send("DELETE", "/tokens/"+key.Prefix(), nil).refused(t, 403, "scope_missing")
	weak.send("DELETE", "/poders/w1", nil).refused(t, 403, "scope_missing")
	weak.send("PATCH", "/sandboxes/a", nil).refused(t, 403, "scope_missing")
	weak.send("POST", "/sandboxes/a/snapshot", nil).refused(t, 403, "scope_missing")
	for _, below := range []string{"stdin", "signal", "cancel"} {
		weak.send("POST", "/sandboxes/a/executions/x/"+below, nil).refused(t, 403, "scope_missing")
	}
	weak.send("GET", "/sandboxes/a/executions", nil).refused(t, 404, "sandbox_not_found")
}

func TestARouteThatThereIsNotSaysSo(t *testing.T) {
	newBoxes(t, nil).send("GET", "/jobs", nil).refused(t, 404, "route_not_found")
}

func TestLogsTellWhatHappened(t *testing.T) {
	w := newBoxes(t, nil)
	w.made("demo")
	w.peer.script("bash", func(x *execution) {
		x.write(chunks.Stdout, []byte("secret output"))
		x.complete(3)
	})
	w.json("POST", "/sandboxes/execute?sandbox=demo", map[string]any{"code": "echo 'a\nb'"}).is(t, 200)
	lines := strings.Split(strings.TrimSuffix(string(w.send("GET", "/sandboxes/demo/logs", nil).body), "\n"), "\n")
	require.Len(t, lines, 5)
	require.Contains(t, lines[0], "requested by dev")
	require.Contains(t, lines[3], "started: bash -c echo 'a b'")
	require.Contains(t, lines[4], "exit code 3")
	require.NotContains(t, strings.Join(lines, ""), "secret output")
	last := w.send("GET", "/sandboxes/demo/logs?tail=1", nil)
	require.Equal(t, lines[4]+"\n", string(last.body))
	w.send("GET", "/sandboxes/demo/logs?tail=x", nil).refused(t, 422, "validation")
}
