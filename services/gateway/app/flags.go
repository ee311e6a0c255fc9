package app

import "time"

// EdgeFlags are the flags of TLS, of tokens and of files, for every program that runs a gateway.
type EdgeFlags struct {
	TLSCert        string            `name:"tls-cert" placeholder:"FILE" help:"PEM file with the certificate for gRPC and HTTP; without one both are in clear. Read again when it changes." type:"path"`
	TLSKey         string            `name:"tls-key" placeholder:"FILE" help:"PEM file with the certificate's key." type:"path"`
	JWKSURL        string            `name:"jwks-url" placeholder:"URL" help:"Where the issuer of JWTs has its keys; without it no JWT is taken."`
	JWTIssuer      string            `name:"jwt-issuer" placeholder:"ISS" help:"What the claim iss of a JWT must be."`
	JWTAudience    string            `name:"jwt-audience" placeholder:"AUD" help:"What the claim aud of a JWT must have."`
	JWTSkew        time.Duration     `name:"jwt-skew" default:"30s" help:"By how much the clocks of issuer and gateway may differ, at most 5m."`
	JWTTenantClaim string            `name:"jwt-tenant-claim" default:"tenant" help:"Claim with the tenant: its name, or a JSON pointer."`
	JWTScopeClaim  string            `name:"jwt-scope-claim" default:"scope" help:"Claim with the scopes: its name, or a JSON pointer."`
	JWTTenants     map[string]string `name:"jwt-tenants" placeholder:"VALUE=TENANT" help:"Tenants by the values of their claim; without any the value is the tenant."`
	JWTScopes      map[string]string `name:"jwt-scopes" placeholder:"VALUE=SCOPE+SCOPE" help:"Scopes by the values of their claim; without any the values are names of scopes."`
	MaxFileBytes   int64             `name:"max-file-bytes" placeholder:"N" help:"Most bytes of a file, or of what an archive holds, that one call over HTTP writes, up to 1 TiB, which is the default."`
}

// Into puts them into a configuration.
func (f EdgeFlags) Into(c Config) Config {
	c.TLSCert, c.TLSKey = f.TLSCert, f.TLSKey
	c.MaxFileBytes = f.MaxFileBytes
	c.JWT = JWT{
		JWKS: f.JWKSURL, Issuer: f.JWTIssuer, Audience: f.JWTAudience, Skew: f.JWTSkew, TenantClaim: f.JWTTenantClaim, ScopeClaim: f.JWTScopeClaim,
		Tenants: f.JWTTenants, Scopes: f.JWTScopes,
	}
	return c
}
