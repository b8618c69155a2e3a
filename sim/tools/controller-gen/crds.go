//go:build tools

// Package controllergen pins the Go types whose CRDs are generated: without an import `go mod tidy`
// would drop the requirement.
package controllergen

import (
	_ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
)
