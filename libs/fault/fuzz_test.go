package fault

import (
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
)

// FuzzDetail: a fault that crosses an edge is sent within bounds whatever is in it, and is the same one when it crosses again.
func FuzzDetail(f *testing.F) {
	f.Add("not_found", "sandbox_not_found", "there is none", "field", "what", int64(time.Second))
	f.Add("", "", "", "", "", int64(-1))
	f.Add("strange", "\xff", "a\xffb\x00", "\xff", "\xff", int64(1<<62))
	f.Fuzz(func(t *testing.T, code, reason, message, field, what string, retry int64) {
		e := New(Code(code), Reason(reason), message).WithFields(map[string]string{field: what}).WithRetry(time.Duration(retry))
		detail, grpc := Detail(e)
		data, err := proto.Marshal(detail)
		require.NoError(t, err)
		require.LessOrEqual(t, len(detail.GetMessage()), MaxMessage)
		require.True(t, utf8.ValidString(detail.GetMessage()))
		read := &commonv1.ErrorDetail{}
		require.NoError(t, proto.Unmarshal(data, read))
		again, same := Detail(FromDetail(read))
		require.True(t, proto.Equal(detail, again), "%v %v", detail, again)
		if _, known := grpcCodes[e.Code]; known {
			require.Equal(t, grpc, same)
		}
		st := Status(e, "corr")
		require.Equal(t, grpc, st.Code())
		require.Equal(t, detail.GetReason(), string(FromStatus(st.Err()).Reason))
	})
}
