package engine

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"maps"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// childEnv marks a process as the engine's child; its value is a childConfig in JSON.
const childEnv = "SANDTRAIL_ENGINE_CHILD"

// childConfig is what the parent tells the child. It goes through the environment, which other users cannot read; the
// command line they can.
type childConfig struct {
	Library, Dir, Ready string
	// Native and HTTP are the ports; 0 is any that is free, as for one behind a front.
	Native, HTTP  int
	AdminPassword string
	Users         map[string]User
}

// IsChild reports whether this process was started to be the engine. The program that hosts the engine asks first thing in
// main, and in TestMain, and then calls Main.
func IsChild() bool { return os.Getenv(childEnv) != "" }

// Main serves ClickHouse until standard input closes or SIGTERM or SIGINT arrives, and returns the exit code.
func Main() int {
	var cfg childConfig
	err := json.Unmarshal([]byte(os.Getenv(childEnv)), &cfg)
	if err == nil {
		err = serve(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "clickhouse:", err)
		return 1
	}
	return 0
}

func serve(cfg childConfig) error {
	if err := os.Unsetenv(childEnv); err != nil {
		return err
	}
	conf, err := writeConfig(cfg)
	if err != nil {
		return err
	}
	// The engine leaves SIGPIPE at its default: one client that goes away in mid-answer would end the process.
	signal.Ignore(syscall.SIGPIPE)
	var stopping atomic.Bool
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	closed := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(closed)
	}()
	go func() {
		select {
		case <-signals:
		case <-closed:
		}
		stopping.Store(true)
		endHold(cfg)
	}()
	err = runLocal(cfg.Library, []string{
		"clickhouse-local", "--config-file", conf, "--path", cfg.Dir, "--listen_host", "127.0.0.1",
		"--tcp_port", strconv.Itoa(cfg.Native), "--http_port", strconv.Itoa(cfg.HTTP),
		"-q", "SYSTEM START LISTEN TCP; SYSTEM START LISTEN HTTP;" +
			" SELECT getServerPort('tcp_port') AS tcp, getServerPort('http_port') AS http INTO OUTFILE " + quote(cfg.Ready) + " TRUNCATE FORMAT JSONEachRow;" +
			" " + hold,
	})
	if stopping.Load() {
		return nil
	}
	return err
}

// hold is the statement that keeps the engine's session, and with it the servers, alive for ever. It reads nothing that needs
// a right: anybody on this host can log in as the session's user.
const hold = "SELECT sleepEachRow(0.2) FROM system.numbers SETTINGS max_block_size = 1 FORMAT Null"

// endHold cancels the hold statement, which lets the engine close its tables in order. Before the engine is ready there is
// nothing to close and the process just ends.
func endHold(cfg childConfig) {
	p, ok := readReady(cfg.Ready)
	if !ok {
		os.Exit(0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/", p.HTTP),
		strings.NewReader("KILL QUERY WHERE query LIKE '%sleepEachRow(0.2) FROM system.numbers%' AND query NOT LIKE 'KILL%' ASYNC"))
	if err != nil {
		os.Exit(1)
	}
	// The engine waits for open connections before it ends.
	r.Close = true
	r.SetBasicAuth(adminUser, cfg.AdminPassword)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		os.Exit(1)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		os.Exit(1)
	}
}

// adminUser has every right and a password that is made anew at each start and known to the parent only.
const adminUser = "sandtrail"

// writeConfig writes the engine's configuration and returns its path.
//
// The engine's own session is always user default with an empty password, and this build has no writable store for users, so
// all of them stand here. default keeps what that session needs, and may read the agents database.
func writeConfig(cfg childConfig) (string, error) {
	users := filepath.Join(cfg.Dir, "users.xml")
	text := fmt.Sprintf(`<clickhouse>
<profiles><default><max_memory_usage>2000000000</max_memory_usage></default></profiles><quotas><default/></quotas>
<users>
<default><password/><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>
<grants>%s</grants></default>
%[4]s<%[2]s><password_sha256_hex>%[3]x</password_sha256_hex><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></%[2]s>
</users>
</clickhouse>
`, grants([]string{"SYSTEM LISTEN ON *.*", "SELECT ON system.one", "SELECT ON system.numbers", "SELECT ON agents.*"}), adminUser,
		sha256.Sum256([]byte(cfg.AdminPassword)), others(cfg))
	if err := os.WriteFile(users, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write users: %w", err)
	}
	conf := filepath.Join(cfg.Dir, "config.xml")
	text = fmt.Sprintf(`<clickhouse>
<logger><level>warning</level><log>%[1]s/server.log</log><errorlog>%[1]s/error.log</errorlog><size>10M</size><count>2</count></logger>
<users_config>%[2]s</users_config>
</clickhouse>
`, cfg.Dir, users)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write config: %w", err)
	}
	return conf, nil
}

// grants are rights as the configuration has them.
func grants(all []string) string {
	var b strings.Builder
	for _, g := range all {
		fmt.Fprintf(&b, "<query>GRANT %s</query>", html.EscapeString(g))
	}
	return b.String()
}

// others are the further users.
func others(cfg childConfig) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(cfg.Users)) {
		u := cfg.Users[name]
		fmt.Fprintf(&b, "<%[1]s><password_sha256_hex>%[2]x</password_sha256_hex><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>"+
			"<grants>%[3]s</grants><databases><agents>", name, sha256.Sum256([]byte(cfg.AdminPassword)), grants(u.Grants))
		for _, table := range slices.Sorted(maps.Keys(u.Policies)) {
			fmt.Fprintf(&b, "<%[1]s><filter>%[2]s</filter></%[1]s>", table, html.EscapeString(u.Policies[table]))
		}
		fmt.Fprintf(&b, "</agents></databases></%s>\n", name)
	}
	return b.String()
}

func quote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
