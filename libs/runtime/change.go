package runtime

// Notifier is a driver that tells of changes, so that they are seen at once and not at the next look.
type Notifier interface {
	// OnChange has f called with the id of a sandbox of which something has changed, from then on; f does not block. A change may be
	// told more than once, or, where the connection to a cluster breaks, not at all: a look from time to time is needed all the same.
	OnChange(f func(id string))
}
