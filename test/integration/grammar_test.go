package integration

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strata-build/strata/test/bases"
)

// grammarCase is a Containerfile that uses a part of the grammar. HOST stands for the
// registry, WEB for a server of files, GIT for one of repositories, SUM for the digest
// of a file of WEB, DIR for a directory.
type grammarCase struct {
	name  string
	file  string
	args  []string
	env   []string
	fails bool
	// ignore are ignore files, by their names.
	ignore map[string]string
	// want is the content of files in the image.
	want map[string]string
}

var grammar = []grammarCase{
	{name: "heredocs", file: `FROM HOST/base/busy:1
ARG X=expanded
ENV Y=variable
RUN <<E
echo one > /one
echo "$Y" >> /one
E
RUN cat > /quoted <<'E'
* # $Y
FROM not-a-stage

end
E
RUN <<-E
	echo tab > /tab
	E
RUN <<E cat > /a && cat > /b <<F
first
E
second
F
RUN cat /proc/self/fd/5 /proc/self/fd/6 5<<E 6<<F > /descriptors
five
E
six
F
COPY <<E /copied
$X $Y "quoted" ${X:-no}
E
COPY <<'E' <<-F files/a.txt /several/
$X
E
	tab
F
COPY --chmod=0640 --chown=7:8 <<name /owned/
content
name
ADD <<E /added

  * ? [ ] # no comment
E
`, want: map[string]string{
		"/one": "one\nvariable\n", "/quoted": "* # $Y\nFROM not-a-stage\n\nend\n", "/tab": "tab\n",
		"/descriptors": "five\nsix\n", "/copied": "expanded variable \"quoted\" expanded\n", "/several/E": "$X\n", "/several/F": "tab\n",
		"/owned/name": "content\n", "/added": "\n  * ? [ ] # no comment\n",
	}},

	{name: "copies", file: `FROM HOST/base/owner:1 AS source
RUN mkdir -p /tree/deep && echo s > /tree/deep/file && ln -s file /tree/deep/link && ln /tree/deep/file /tree/deep/hard && chmod 4755 /tree/deep/file && chown 70000:42 /tree
FROM HOST/base/busy:1
COPY --chmod=0751 files/a.txt /modes/numeric
COPY --chown=nobody:nogroup files /owners/names/
COPY --chown=12:34 --chmod=600 files /owners/numbers/
COPY --chown=70000 files/a.txt /owners/one
COPY --link --chown=5:6 files/a.txt /linked/
COPY --link files /linked-tree/
COPY --parents files/./sub/deeper/d.txt files/sub/c.txt /parents/
COPY --exclude=*.txt --exclude=sub/deeper files /excluded/
COPY --from=source /tree /tree
COPY --from=source --chown=1:2 /owner /owner
COPY --from=HOST/base/big:1 /etc/passwd /passwd-of-another
COPY files/*.txt files/[b-z].md fi?es/sub/ /globs/
COPY ["files/with space", "/with space/"]
COPY . /all
COPY files/sub new/../relative
WORKDIR /place
COPY files/a.txt ./
COPY files/a.txt renamed
ADD archives/a.tar.gz archives/a.tar.bz2 /unpacked/
ADD --chown=9:9 archives/a.tar /unpacked-owned/
ADD --exclude=a.tar.gz archives /not-one/
ADD archives/not.tar.gz /not/
`, want: map[string]string{
		"/place/renamed": "a\n", "/parents/sub/deeper/d.txt": "d\n", "/with space/with space": "space\n", "/unpacked/one": "in a.tar.gz\n", "/unpacked/two": "in a.tar.bz2\n",
	}},

	{name: "mounts", args: []string{
		"--secret", "id=file,src=DIR/secret", "--secret", "id=env,env=GRAMMAR_SECRET", "--secret", "id=typed,type=env,env=GRAMMAR_SECRET",
		"--build-context", "more=DIR/more", "--build-context", "image=docker-image://HOST/base/owner:1", "--volume", "DIR/volume:/volume:ro", "--volume", "DIR/more:/writable:O",
	}, env: []string{"GRAMMAR_SECRET=in the environment"}, file: `FROM HOST/base/busy:1 AS made
RUN mkdir /made && echo made > /made/file
FROM HOST/base/busy:1
RUN --mount=type=bind,target=/context cat /context/files/a.txt > /bind
RUN --mount=target=/context,source=files,rw echo x > /context/new && ls /context >> /bind
RUN --mount=type=bind,source=files/sub/c.txt,target=/just-a-file cat /just-a-file >> /bind
RUN --mount=type=bind,from=made,source=/made,target=/made cat /made/file >> /bind
RUN --mount=type=bind,from=HOST/base/owner:1,source=/owner,target=/owner stat -c '%n %a %u:%g' /owner/* >> /bind
RUN --mount=type=bind,from=more,target=/more cat /more/m.txt >> /bind
RUN --mount=type=bind,from=image,source=/owner/group,target=/g cat /g >> /bind
RUN --mount=type=cache,target=/cache,id=one,uid=3,gid=4,mode=0750 stat -c '%a %u:%g' /cache > /cached && echo kept > /cache/file
RUN --mount=type=cache,id=one,uid=3,gid=4,target=/elsewhere,sharing=locked cat /elsewhere/file >> /cached
RUN --mount=type=cache,target=/cache,from=made,source=/made,readonly cat /cache/file >> /cached
RUN --mount=type=tmpfs,target=/scratch,tmpfs-size=1M grep -c ' /scratch tmpfs ' /proc/mounts > /tmpfs; df -k /scratch | awk 'END { print $2 }' >> /tmpfs
RUN --mount=type=secret,id=file cat /run/secrets/file | wc -c > /secrets
RUN --mount=type=secret,id=file stat -c '%n %a %u:%g' /run/secrets/file >> /secrets
RUN --mount=type=secret,id=file,target=/s,uid=11,gid=12,mode=0440 stat -c '%n %a %u:%g' /s >> /secrets
RUN --mount=type=secret,id=env,env=TOKEN test "$TOKEN" = "in the environment" && echo right >> /secrets
RUN --mount=type=secret,id=typed,required=true grep -c environment /run/secrets/typed >> /secrets
RUN --mount=type=secret,id=none,target=/none test ! -e /none && echo none >> /secrets
RUN cat /volume/v.txt > /volumes && ! touch /volume/x 2>/dev/null && touch /writable/y && cat /writable/m.txt >> /volumes
RUN --network=host --mount=type=bind,target=/c --mount=type=tmpfs,target=/t cp /c/files/a.txt /t && cp /t/a.txt /both
`, want: map[string]string{
		"/cached": "750 3:4\nkept\nmade\n", "/secrets": "16\n/run/secrets/file 400 0:0\n/s 440 11:12\nright\n1\nnone\n", "/volumes": "volume\nmore\n", "/both": "a\n", "/tmpfs": "1\n1024\n",
	}},

	{
		name: "arguments", args: []string{
			"--build-arg", "VERSION=2", "--build-arg", "FROM_ENV", "--build-arg", "PLAIN=given", "--build-arg", "http_proxy=http://proxy.invalid",
			"--label", "l=flag", "--annotation", "a=flag",
		}, env: []string{"FROM_ENV=out of the environment"}, file: `ARG VERSION=1
ARG BASE=busy
ARG UNSET
FROM HOST/base/${BASE}:1 AS first
RUN echo "[$VERSION]" > /version
ARG VERSION
RUN echo "[$VERSION]" >> /version
FROM --platform=$BUILDPLATFORM HOST/base/busy:1
COPY --from=first /version /
ARG VERSION=own
ARG PLAIN
ARG FROM_ENV UNSET=default OTHER="with space"
ARG TARGETARCH TARGETOS TARGETPLATFORM TARGETVARIANT BUILDARCH
ENV V=$VERSION P=${PLAIN:+set} D=${NOTHING:-default} E="a b" F=x\ y G='$VERSION' H=${V}
ENV OLD form with spaces
RUN echo "$VERSION $PLAIN $FROM_ENV $UNSET $OTHER $TARGETOS [$TARGETVARIANT]" >> /version
RUN test "$TARGETOS/$TARGETARCH" = "$TARGETPLATFORM" && test "$BUILDARCH" = "$TARGETARCH"
ARG PLAIN=later
RUN echo "$PLAIN" >> /version
RUN PLAIN=shell; echo "$PLAIN ${V}" >> /version
LABEL version=$VERSION "with space"="${D}" l=file
LABEL multi=a \
      line=b
EXPOSE $VERSION 80/udp
USER ${V}:$V
WORKDIR /w/$V
VOLUME /v/$V
STOPSIGNAL ${V}
ENTRYPOINT ["/bin/echo", "$V"]
CMD $V
`, want: map[string]string{"/version": "[]\n[2]\n2 given out of the environment default with space linux []\ngiven\nshell 2\n"},
	},

	{name: "stages", args: []string{"--target", "wanted", "--build-context", "replaced=docker-image://HOST/base/owner:1", "--build-context", "dir=DIR/more", "--jobs", "2"}, file: `# syntax=docker/dockerfile:1
FROM HOST/base/busy:1 AS one
RUN echo one > /one
ENV INHERITED=yes
from one as two
run echo "$INHERITED" > /two
FROM HOST/base/never:1 AS unused
RUN false
FROM replaced AS other
COPY --from=dir m.txt /
FROM scratch AS wanted
COPY --from=0 /one /
COPY --from=two /two /
COPY --from=other /m.txt /owner/* /
FROM HOST/base/never:1
RUN false
`, want: map[string]string{"/one": "one\n", "/two": "yes\n", "/m.txt": "more\n"}},

	{name: "metadata", args: []string{"--format", "docker", "--label", "a=b"}, file: `FROM HOST/base/busy:1 AS parent
ONBUILD ARG A=onbuild
ONBUILD RUN echo $A > /onbuild
ONBUILD COPY files/a.txt /copied-on-build
ONBUILD LABEL on=build
FROM parent AS child
MAINTAINER Someone <someone@example.com>
SHELL ["/bin/sh", "-e", "-c"]
RUN true; echo "$-" > /shell
HEALTHCHECK --interval=5s --timeout=3s --start-period=1s --start-interval=2s --retries=4 CMD wget -q http://localhost || exit 1
STOPSIGNAL SIGUSR1
EXPOSE 8080 53/udp 100-102
VOLUME ["/data", "/more data"]
RUN mkdir -p /data && echo x > /data/after
WORKDIR /a
WORKDIR b
WORKDIR ../c
RUN pwd > /where
USER nobody
RUN id -u > /tmp/id
USER 0:42
RUN id > /id
ENTRYPOINT exec top -b
CMD ["--help"]
LABEL a.b.c="d e" f='g'
ENV PATH=/own:$PATH
RUN ["/bin/sh", "-c", "echo exec > /exec"]
`, want: map[string]string{"/where": "/a/c\n", "/exec": "exec\n", "/tmp/id": "65534\n"}},

	// Triggers of a base image that is not built here run.
	{name: "triggers of a base", args: []string{"--format", "docker", "--build-arg", "A=given"}, file: "FROM HOST/base/trigger:1\nRUN cat /onbuild > /after\n", want: map[string]string{"/onbuild": "given\n", "/after": "given\n", "/copied-on-build": "a\n"}},

	{name: "no healthcheck", args: []string{"--format", "docker"}, file: "FROM HOST/base/busy:1\nHEALTHCHECK NONE\nONBUILD RUN false\nCMD []\nENTRYPOINT [\"\"]\n"},

	{name: "escape", file: "# escape=`\n\nFROM HOST/base/busy:1\nRUN echo one `\n  # a comment in between\n  two > /escaped\nENV A=`$x B=\\y\n", want: map[string]string{"/escaped": "one two\n"}},

	{name: "containerignore", ignore: map[string]string{".containerignore": "**/*.txt\n!files/a.txt\n# comment\n/archives\n", ".dockerignore": "*\n"}, file: "FROM scratch\nCOPY . /\n", want: map[string]string{"/files/a.txt": "a\n"}},
	{name: "dockerignore", ignore: map[string]string{".dockerignore": "*\n!files\nfiles/sub\n"}, file: "FROM scratch\nCOPY . /\n", want: map[string]string{"/files/a.txt": "a\n"}},
	{name: "ignore of the file", ignore: map[string]string{"grammar.Containerfile.dockerignore": "files\n", ".dockerignore": "archives\n"}, file: "FROM scratch\nCOPY . /\n", want: map[string]string{"/archives/not.tar.gz": "no archive\n"}},
	{name: "ignored source", ignore: map[string]string{".containerignore": "files/a.txt\n"}, file: "FROM scratch\nCOPY files/a.txt /\n", fails: true},

	{name: "servers", file: `FROM HOST/base/busy:1
ADD WEB/plain.txt /web/
ADD WEB/plain.txt /web/renamed
ADD --chmod=0755 --chown=3:4 WEB/plain.txt /web/owned
ADD --checksum=SUM WEB/plain.txt /web/checked
ADD --link WEB/plain.txt /linked/
ADD WEB/a.tar.gz /web/
ADD GIT/repo.git /git/
ADD --chown=5:6 --chmod=0700 GIT/repo.git#side:dir /git-dir/
ADD GIT/repo.git#v1 /git-tag/
RUN rm -r /git/.git /git-tag/.git && ls -a /git-dir
`, want: map[string]string{"/web/plain.txt": "from the server\n", "/git/readme": "main\n", "/git-dir/file": "side\n", "/git-tag/readme": "first\n"}},

	{name: "squash", args: []string{"--squash"}, file: "FROM HOST/base/busy:1\nRUN echo a > /a\nRUN rm /a && echo b > /b\nCOPY files /f\n", want: map[string]string{"/b": "b\n"}},
	{name: "no layers", args: []string{"--layers=false"}, file: "FROM HOST/base/busy:1\nRUN echo a > /a\nRUN rm /a && echo b > /b\nCOPY files /f\n", want: map[string]string{"/b": "b\n"}},
	{name: "empty", file: "FROM scratch\n"},
	{name: "only a label", file: "FROM HOST/base/busy:1\nLABEL a=b\n"},

	{name: "script by its interpreter", file: "FROM HOST/base/busy:1\nRUN /bin/sh <<E\n#!/bin/sh\necho a > /a\nE\n", want: map[string]string{"/a": "a\n"}},
	// Isolation chroot mounts nothing below /dev, where buildah has such a script.
	{name: "heredoc that is a script", file: "FROM HOST/base/busy:1\nRUN <<E\n#!/bin/sh\ntrue\nE\n", fails: true},
	// buildah understands the flag and refuses it.
	{name: "history of a repository", file: "FROM scratch\nADD --keep-git-dir=true GIT/repo.git /git/\n", fails: true},
	{name: "wrong checksum", file: "FROM scratch\nADD --checksum=sha256:0000000000000000000000000000000000000000000000000000000000000000 WEB/plain.txt /\n", fails: true},
	{name: "unknown stage", file: "FROM scratch\nCOPY --from=nowhere /a /\n", fails: true},
	{name: "unknown user", file: "FROM HOST/base/busy:1\nCOPY --chown=nosuch files/a.txt /\n", fails: true},
	{name: "bad mode", file: "FROM scratch\nCOPY --chmod=99 files/a.txt /\n", fails: true},
	{name: "missing secret", file: "FROM HOST/base/busy:1\nRUN --mount=type=secret,id=none,required=true true\n", fails: true},
	{name: "exit status", file: "FROM HOST/base/busy:1\nSHELL [\"/bin/sh\", \"-ec\"]\nRUN <<E\nfalse\ntrue\nE\n", fails: true},
}

// TestGrammar builds Containerfiles that use every part of the grammar with the agent
// and with buildah's own command line: the images are the same.
func TestGrammar(t *testing.T) {
	p := newPeers(t)
	p.l.addBase("base/owner:1", bases.Owner(t))
	p.l.addBase("base/big:1", bases.Big(t))
	p.l.addBase("base/trigger:1", triggers(t))
	names := strings.NewReplacer("HOST", p.l.registry.Host(), "WEB", fileServer(t), "GIT", gitServer(t), "DIR/", p.l.dir+"/",
		"SUM", fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(served))))
	p.l.file("secret", "secret of a file")
	p.l.file("more/m.txt", "more\n")
	p.l.file("volume/v.txt", "volume\n")
	for _, c := range grammar {
		t.Run(c.name, func(t *testing.T) {
			p.l.t = t
			name := strings.ReplaceAll(c.name, " ", "-")
			dir := filepath.Join("grammar", name)
			in := input{context: grammarContext(p.l, dir), fails: c.fails, env: c.env}
			for name, text := range c.ignore {
				p.l.file(filepath.Join(dir, name), text)
			}
			in.file = p.l.file(filepath.Join(dir, "grammar.Containerfile"), names.Replace(c.file))
			for _, arg := range c.args {
				in.args = append(in.args, names.Replace(arg))
			}
			image := p.compare(t, name, in)
			if image == nil {
				return
			}
			tree := bases.Flatten(t, image)
			for path, want := range c.want {
				if got, _ := tree.File(t, path); string(got) != want {
					t.Errorf("%s has %q, want %q", path, got, want)
				}
			}
		})
	}
}
