package keeper

import (
	"os"
	"path/filepath"
	"strings"
)

// damaged reports whether the file system of the workspace has failed, because the worker's disk below it was full or failed: it takes no
// write any more, and what was written last is lost. Where the kernel does not say it is not.
func (b *sandbox) damaged() bool {
	if b.device == "" {
		return false
	}
	n, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(b.device), "errors_count"))
	return err == nil && strings.TrimSpace(string(n)) != "0"
}
