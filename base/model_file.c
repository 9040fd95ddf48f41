#include "base/model_file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

size_t
model_file_part(const char *path, size_t suffix, int *no, int *count)
{
	size_t n = strlen(path) - suffix;
	const char *s = path + n - 15; /* "-00001-of-00003" */

	*no = *count = 1;
	if (n <= 15 || s[0] != '-' || strncmp(s + 6, "-of-", 4) != 0)
		return n;
	for (int i = 1; i < 6; i++)
		if (!isdigit((unsigned char)s[i]) || !isdigit((unsigned char)s[9 + i]))
			return n;
	*no = atoi(s + 1);
	*count = atoi(s + 10);
	return n - 15;
}

bool
model_file_is_gguf(const char *path)
{
	const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;

	return ends_with(path, ".gguf") && !strcasestr(base, "mmproj") &&
	       !strcasestr(base, "imatrix");
}
