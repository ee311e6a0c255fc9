package live

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// tick is the unit of times in /proc.
const tick = 10 * time.Millisecond

// CPU is the processor time that processes have used, to a hundredth of a second; those that are gone count nothing.
func CPU(pids ...int) (total time.Duration) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		// The name in parentheses may hold anything; utime and stime are the 12th and 13th field behind it.
		fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(fields) < 13 {
			continue
		}
		for _, f := range fields[11:13] {
			n, _ := strconv.ParseInt(string(f), 10, 64)
			total += time.Duration(n) * tick
		}
	}
	return total
}
