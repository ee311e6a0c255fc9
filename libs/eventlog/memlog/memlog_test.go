package memlog_test

import (
	"testing"

	"github.com/sandtrail/sandtrail/libs/eventlog"
	"github.com/sandtrail/sandtrail/libs/eventlog/eventlogtest"
	"github.com/sandtrail/sandtrail/libs/eventlog/memlog"
)

func TestContract(t *testing.T) {
	eventlogtest.Run(t, func(testing.TB) eventlog.Log { return memlog.New() })
}
