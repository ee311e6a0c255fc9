// Package contract holds the tests that keep the published wire contract as it is.
package contract
