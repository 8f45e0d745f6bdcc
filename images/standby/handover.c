#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// As standby.go and serve.go have them.
#define VARIABLE "STRATA_STANDBY"
#define COPIER "buildah-copier"
#define HANDED_OVER 5
#define TAKEN 't'
#define DONE 'd'

// answer returns what the process at the other end says, 0 where it has ended.
static char answer(int other)
{
	char said;
	ssize_t n;

	do {
		n = recv(other, &said, 1, 0);
	} while (n < 0 && errno == EINTR);
	return n == 1 ? said : 0;
}

// reach returns a connection to the process that stands by at a socket, negative where
// there is none.
static int reach(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int other;

	if (strlen(path) >= sizeof(address.sun_path))
		return -1;
	strcpy(address.sun_path, path);
	other = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (other >= 0 && connect(other, (struct sockaddr *)&address, sizeof(address)) != 0) {
		close(other);
		return -1;
	}
	return other;
}

// find returns a connection to a process that stands by and that no other process uses
// until this one ends, negative where there is none.
static int find(const char *paths)
{
	char path[PATH_MAX];

	for (int i = 0;; i++) {
		int lock, other;

		if (snprintf(path, sizeof(path), "%s%d.lock", paths, i) >= (int)sizeof(path))
			return -1;
		lock = open(path, O_RDONLY | O_CLOEXEC);
		if (lock < 0)
			return -1;
		if (flock(lock, LOCK_EX | LOCK_NB) == 0) {
			path[strlen(path) - strlen(".lock")] = 0;
			other = reach(path);
			if (other >= 0)
				return other;
		}
		close(lock);
	}
}

// offer sends the descriptors of this process, and the level at which it is to log.
static ssize_t offer(int other)
{
	const char *level = getenv("LOGLEVEL");
	struct iovec text = {.iov_base = (void *)(level && *level ? level : "-")};
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(HANDED_OVER * sizeof(int))];
	} rights = {0};
	struct msghdr message = {
		.msg_iov = &text, .msg_iovlen = 1,
		.msg_control = rights.space, .msg_controllen = sizeof(rights.space),
	};
	int descriptors[HANDED_OVER];

	text.iov_len = strlen(text.iov_base);
	for (int fd = 0; fd < HANDED_OVER; fd++)
		descriptors[fd] = fd;
	rights.header.cmsg_level = SOL_SOCKET;
	rights.header.cmsg_type = SCM_RIGHTS;
	rights.header.cmsg_len = CMSG_LEN(sizeof(descriptors));
	memcpy(CMSG_DATA(&rights.header), descriptors, sizeof(descriptors));
	return sendmsg(other, &message, MSG_NOSIGNAL);
}

// hand_over lets a process that stands by do what this one was started for, and ends with
// it. It returns where there is none, or this is another kind of process: then all goes on
// as if it were not here. It runs before Go's runtime begins, and before what has no
// priority of its own (up to 100 are those of the compiler). A libc that does not give
// constructors the arguments is left alone.
#ifdef __GLIBC__
__attribute__((constructor(101)))
static void hand_over(int argc, char **argv)
{
	const char *paths = getenv(VARIABLE);
	int other;

	if (paths == NULL || argc != 1 || strcmp(argv[0], COPIER) != 0)
		return;
	other = find(paths);
	if (other < 0)
		return;
	if (offer(other) < 0 || answer(other) != TAKEN) {
		close(other);
		return;
	}
	if (answer(other) == DONE)
		_exit(0);
	// The work was not done. Why is on standard error, or, where a signal ended the
	// process, to be seen from how this one ends.
	raise(SIGKILL);
}
#endif
