package controller

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"

	mcfgv1 "github.com/openshift/api/machineconfiguration/v1"
	"k8s.io/apimachinery/pkg/types"
)

// requestKeys are the names of an annotation or a label that asks for a rebuild.
// Its value means nothing, but another value is another request.
var requestKeys = []string{prefix + "force-rebuild", prefix + "rebuild", prefix + "rebuildImage"}

// requests are the requests on a MachineOSConfig: values by where they stand
// ("annotation" or "label") and key, long ones in brief.
type requests map[string]string

func requestsOf(config *mcfgv1.MachineOSConfig) requests {
	found := requests{}
	for _, key := range requestKeys {
		if value, ok := config.Annotations[key]; ok {
			found["annotation "+key] = brief(value)
		}
		if value, ok := config.Labels[key]; ok {
			found["label "+key] = brief(value)
		}
	}
	return found
}

// acceptance records on a MachineOSConfig that requests are being served. It is
// written before anything is deleted, and removed by the same write that removes
// the requests: between the two, the request is served once whatever happens, and
// after the second the same value is a new request.
type acceptance struct {
	// ID is on the build that serves the requests. It is the version of the config
	// that was accepted, so no two acceptances of one config have the same.
	ID string `json:"id"`
	// Config is the UID of the config. A copy of the annotation on another config
	// of the same name is none.
	Config   types.UID `json:"config"`
	Requests requests  `json:"requests"`
}

// acceptedOf is the acceptance on a config, or nil.
func acceptedOf(config *mcfgv1.MachineOSConfig) *acceptance {
	var a acceptance
	if text, ok := config.Annotations[annotationRebuild]; !ok || json.Unmarshal([]byte(text), &a) != nil {
		return nil
	}
	if a.Config != config.UID || a.ID == "" {
		return nil
	}
	return &a
}

// accept records the requests on the config.
func accept(config *mcfgv1.MachineOSConfig) {
	a := acceptance{ID: config.ResourceVersion, Config: config.UID, Requests: requestsOf(config)}
	text, err := json.Marshal(a)
	if err != nil {
		panic(err) // strings alone cannot be refused
	}
	if config.Annotations == nil {
		config.Annotations = map[string]string{}
	}
	config.Annotations[annotationRebuild] = string(text)
}

// finish removes an acceptance and the requests that it has served. One whose
// value has changed meanwhile stays: it is a new request.
func finish(config *mcfgv1.MachineOSConfig, a *acceptance) {
	for _, key := range requestKeys {
		if value, ok := config.Annotations[key]; ok && a.has("annotation "+key, value) {
			delete(config.Annotations, key)
		}
		if value, ok := config.Labels[key]; ok && a.has("label "+key, value) {
			delete(config.Labels, key)
		}
	}
	delete(config.Annotations, annotationRebuild)
}

func (a *acceptance) has(key, value string) bool {
	accepted, ok := a.Requests[key]
	return ok && accepted == brief(value)
}

// brief is a value as it is recorded and shown. Of a long one the hash tells it from
// others: all annotations of an object have 256 KiB together, and a condition has less.
func brief(value string) string {
	const most = 128
	if len(value) <= most {
		return value
	}
	sum := sha256.Sum256([]byte(value))
	return head(value, most-len(sum)*2-1) + " " + hex.EncodeToString(sum[:])
}

// describe names the requests for an event.
func (r requests) describe() (text string) {
	for _, key := range sortedKeys(r) {
		if text != "" {
			text += ", "
		}
		text += key
		if r[key] != "" {
			text += "=" + r[key]
		}
	}
	return text
}

func sortedKeys(r requests) []string {
	return slices.Sorted(maps.Keys(r))
}
