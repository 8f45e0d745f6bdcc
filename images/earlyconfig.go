package images

import (
	"bytes"
	"context"

	digest "github.com/opencontainers/go-digest"

	"github.com/strata-build/strata/images/distribution"
)

// earlyConfig is the config of an image that is sent at the beginning of a push. The copy
// of an image sends it when all layers are there: three answers to wait for, where mostly
// there was nothing to be sent but this.
type earlyConfig struct {
	blob   digest.Digest
	cancel context.CancelFunc
	done   chan struct{} // closed when the rest is known
	sent   int64         // bytes, 0 where the repository had it
	err    error
}

// sendConfig begins to send the config of an image in the store, nil where it has none
// under its id. What goes wrong is left to the push.
func (e *Engine) sendConfig(ctx context.Context, id string, client *distribution.Client) *earlyConfig {
	c := &earlyConfig{blob: digest.NewDigestFromEncoded(digest.SHA256, id), done: make(chan struct{})}
	config, err := e.store.ImageBigData(id, c.blob.String())
	if err != nil {
		return nil
	}
	ctx, c.cancel = context.WithCancel(ctx)
	go func() {
		defer close(c.done)
		if size, ok, err := client.HasBlob(ctx, c.blob); err == nil && ok && size == int64(len(config)) {
			return
		}
		if _, c.sent, c.err = client.PutBlob(ctx, bytes.NewReader(config), c.blob, int64(len(config))); c.err != nil {
			e.log.Debug("The config of the image is left to the end of the push", "error", c.err)
		}
	}()
	return c
}

// wait waits until a blob is there; ok is false where it is not the config, or that
// failed. Once it tells how many bytes were sent.
func (c *earlyConfig) wait(blob digest.Digest) (sent int64, ok bool) {
	if c == nil || blob != c.blob {
		return 0, false
	}
	<-c.done
	sent, c.sent = c.sent, 0
	return sent, c.err == nil
}

// close ends it, and waits for that.
func (c *earlyConfig) close() {
	if c != nil {
		c.cancel()
		<-c.done
	}
}
