package client

import (
	"context"

	commonv1 "github.com/sandtrail/sandtrail/proto/gen/go/common/v1"
	computev1 "github.com/sandtrail/sandtrail/proto/gen/go/compute/v1"
)

// maxPage is the most that a server gives at once.
const maxPage = 200

// Sandboxes follows every page of a list; at most limit entries, 0 for all. The server's order is kept.
func (c *Client) Sandboxes(ctx context.Context, req *computev1.ListSandboxesRequest, limit int) ([]*computev1.DescribeSandboxResponse, error) {
	return pages(limit, func(page *commonv1.PageRequest) ([]*computev1.DescribeSandboxResponse, string, error) {
		req.Page = page
		res, err := Retry(ctx, c, func(ctx context.Context) (*computev1.ListSandboxesResponse, error) { return c.ListSandboxes(ctx, req) })
		return res.GetSandboxes(), res.GetPage().GetNextCursor(), err
	})
}

// Usage is Sandboxes for usage rows.
func (c *Client) Usage(ctx context.Context, req *computev1.ListUsageRequest, limit int) ([]*computev1.UsageRow, error) {
	return pages(limit, func(page *commonv1.PageRequest) ([]*computev1.UsageRow, string, error) {
		req.Page = page
		res, err := Retry(ctx, c, func(ctx context.Context) (*computev1.ListUsageResponse, error) { return c.ListUsage(ctx, req) })
		return res.GetRows(), res.GetPage().GetNextCursor(), err
	})
}

func pages[T any](limit int, get func(*commonv1.PageRequest) ([]T, string, error)) ([]T, error) {
	all, cursor := []T{}, ""
	for {
		want := int32(maxPage)
		if left := limit - len(all); limit > 0 && left < maxPage {
			want = int32(left)
		}
		page, next, err := get(&commonv1.PageRequest{Cursor: cursor, Limit: &want})
		if err != nil {
			return all, err
		}
		all = append(all, page...)
		if next == "" || next == cursor || (limit > 0 && len(all) >= limit) {
			return all, nil
		}
		cursor = next
	}
}
