package images

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"slices"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// Bill is the bill of materials of a program, from what the compiler wrote into it: CycloneDX 1.6, JSON. It has no serial number and no
// time, so that the same program has the same bill.
func Bill(binary, version string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("read what it was built from: %w", err)
	}
	bom := cyclonedx.NewBOM()
	bom.SerialNumber = ""
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		BOMRef: info.Path, Type: cyclonedx.ComponentTypeApplication, Name: info.Path, Version: version,
	}}
	components := []cyclonedx.Component{{
		BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion,
		PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, m := range info.Deps {
		if m.Replace != nil && m.Replace.Version != "" {
			m = m.Replace
		}
		v := m.Version
		if m.Replace != nil || v == "(devel)" {
			v = version // a part of this tree
		}
		c := cyclonedx.Component{
			BOMRef: m.Path, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: v, PackageURL: "pkg:golang/" + m.Path + "@" + v,
		}
		components = append(components, c)
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return strings.Compare(a.Name, b.Name) })
	bom.Components = &components
	var out bytes.Buffer
	e := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON)
	if err := e.SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("encode the bill: %w", err)
	}
	return out.Bytes(), nil
}
