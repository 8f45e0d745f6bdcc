package render

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
)

// File is a file of an Ignition config.
type File struct {
	Path    string
	Content []byte
}

// maxFile bounds what one compressed file of an Ignition config may become.
const maxFile = 4 << 20

// Files returns the files of an Ignition config (of any version: 2 and 3 agree
// on this part) for whose path want is true, in the order in which they stand there.
func Files(config []byte, want func(path string) bool) (files []File, err error) {
	if len(config) == 0 {
		return nil, nil
	}
	var c struct {
		Storage struct {
			Files []struct {
				Path     string
				Contents struct {
					Source      string
					Compression string
				}
			}
		}
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("its Ignition config is not JSON of the expected form: %w", err)
	}
	for _, f := range c.Storage.Files {
		if !want(f.Path) {
			continue
		}
		content, err := dataURL(f.Contents.Source)
		if err == nil && f.Contents.Compression == "gzip" {
			content, err = gunzip(content)
		}
		if err != nil {
			return nil, fmt.Errorf("the file %s of its Ignition config cannot be read: %w", f.Path, err)
		}
		files = append(files, File{f.Path, content})
	}
	return files, nil
}

// dataURL decodes a URL of RFC 2397. An empty one stands for an empty file.
func dataURL(s string) ([]byte, error) {
	if s == "" {
		return nil, nil
	}
	head, data, ok := strings.Cut(strings.TrimPrefix(s, "data:"), ",")
	if !ok || !strings.HasPrefix(s, "data:") {
		return nil, errors.New("its source is not a data: URL")
	}
	data, err := url.PathUnescape(data)
	if err != nil || !strings.HasSuffix(head, ";base64") {
		return []byte(data), err
	}
	return base64.StdEncoding.DecodeString(data)
}

func gunzip(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	return content, err
}
