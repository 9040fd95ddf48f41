/* A folder in memory for fuzzers of code that reads files, and the parts of an input that become
 * those files. */
#ifndef TESTS_FUZZ_FOLDER_H
#define TESTS_FUZZ_FOLDER_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64]; /* "": the folder does not exist yet */

static inline void
folder_clear(void)
{
	DIR *d = opendir(folder);

	for (struct dirent *e; d && (e = readdir(d)) != NULL;)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

static inline void
folder_remove(void)
{
	folder_clear();
	rmdir(folder);
}

static inline void
folder_make(void)
{
	if (folder[0])
		return;
	snprintf(folder, sizeof folder, "%s/llmc-fuzz.XXXXXX",
	         access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(folder))
		abort();
	atexit(folder_remove);
}

/* Writes a file; returns its path, which is valid until the next call. */
static inline const char *
folder_put(const char *name, const void *data, size_t n)
{
	static char path[256];

	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, data, n) != (ssize_t)n)
		abort();
	close(fd);
	return path;
}

/* Takes the next part of the input: two bytes hold its length, and its bytes follow. The last part
 * is the rest of the input.
 */
static inline size_t
part(const uint8_t **data, size_t *size, const uint8_t **out)
{
	size_t n = *size >= 2 ? (size_t)((*data)[0] | (*data)[1] << 8) : 0,
	       head = *size >= 2 ? 2 : 0;

	*data += head;
	*size -= head;
	if (n > *size)
		n = *size;
	*out = *data;
	*data += n;
	*size -= n;
	return n;
}

#endif
