/* Downloads a GGUF file from a URL into <cache>/downloads/<key>/NAME, and all other parts if it is
 * split. The key is the start of the SHA-256 of the address without its query, which is often a
 * signature. The ETag of a file shows whether the server has a newer version. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/text.h"
#include "hub/hub.h"

enum { SUFFIX = 20, MAX_PARTS = 999 }; /* "-00001-of-00003.gguf" */

/* Parse the number of parts of NAME-00001-of-0000N.gguf; 1: not a split file, 0: not its first
 * part. */
static int
parts_of(const char *file)
{
	size_t n = strlen(file);
	int no, count, end = 0;

	if (n <= SUFFIX ||
	    sscanf(file + n - SUFFIX, "-%5d-of-%5d.gguf%n", &no, &count, &end) != 2 ||
	    end != SUFFIX)
		return 1;
	return no == 1 && count > 0 && count <= MAX_PARTS ? count : 0;
}

/* Return the address of another part: this one with the number replaced */
static const char *
part_url(const HubName *name, int no, Arena *a)
{
	size_t n = strcspn(name->url, "?#");

	return arena_printf(a, "%.*s-%05d%s", (int)(n - SUFFIX), name->url, no,
	                    name->url + n - SUFFIX + 6);
}

/* Check that the file is a GGUF: servers often answer a wrong address with status 200 and a page of
 * HTML. */
static llmc_status
check_content(const char *path, llmc_error *err)
{
	FileMap m;

	TRY(file_map(path, &m, err));
	llmc_status s = file_check_content(path, m.data, m.size, err);
	if (s == LLMC_OK && ends_with(path, ".gguf") &&
	    (m.size < 4 || memcmp(m.data, "GGUF", 4) != 0))
		s = error_set(err, LLMC_E_CHECK,
		              "the server sent %zu bytes that are no GGUF file; check the address",
		              m.size);
	file_unmap(&m);
	return s;
}

const char *
hub_url_folder(Hub *h, const HubName *name)
{
	Sha256 sum;
	char key[65];

	sha256_init(&sum);
	sha256_add(&sum, name->url, strcspn(name->url, "?#"));
	sha256_hex(&sum, key);
	return arena_printf(h->a, "%s/%.16s", h->cfg.downloads, key);
}

llmc_status
hub_pull_url(Hub *h, const HubName *name, bool update, const char **path, llmc_error *err)
{
	const char *file = hub_url_file(name->url, h->a);
	int n = parts_of(file);
	bool here = true;

	if (n == 0)
		return error_set(err, LLMC_E_INPUT,
		                 "%s: name the first part of the split GGUF, -00001-of-...",
		                 name->url);
	const char *dir = hub_url_folder(h, name);
	HubPart *p = NEW(h->a, HubPart, n);
	for (int i = 0; i < n; i++) {
		const char *base =
		    n == 1 ? file
		           : arena_printf(h->a, "%.*s-%05d%s", (int)(strlen(file) - SUFFIX), file,
		                          i + 1, file + strlen(file) - SUFFIX + 6);
		p[i] = (HubPart){ .url = n == 1 ? name->url : part_url(name, i + 1, h->a),
			          .name = base,
			          .dest = arena_printf(h->a, "%s/%s", dir, base),
			          .size = -1,
			          .lock = arena_printf(h->a, "%s/.%s.lock", dir, base),
			          .etag_file = arena_printf(h->a, "%s/.%s.etag", dir, base) };
		bool exists = file_exists(p[i].dest);
		p[i].update = update && exists;
		here = here && exists;
	}
	*path = p[0].dest;
	if (here && (!update || h->cfg.offline)) {
		/* `llmc cache --prune` removes files by the time of their last use */
		utimensat(AT_FDCWD, *path, NULL, 0);
		return LLMC_OK;
	}
	if (h->cfg.offline)
		return error_set(
		    err, LLMC_E_INPUT,
		    "%s: not in the cache (%s), and HF_HUB_OFFLINE forbids to download "
		    "it",
		    name->url, h->cfg.downloads);
	TRY(file_mkdirs(dir, err));
	TRY(file_write(arena_printf(h->a, "%s/.url", dir), name->url, strcspn(name->url, "?#"),
	               err));
	h->state.n_files = n;
	TRY(hub_download(h, p, (size_t)n, err));
	for (int i = 0; i < n; i++) {
		llmc_status s = check_content(p[i].dest, err);
		if (s != LLMC_OK) {
			remove(p[i].dest);
			remove(p[i].etag_file);
			error_prefix(err, "%s", p[i].url);
			return s;
		}
	}
	return LLMC_OK;
}
