/* Mapping a truncated shared object may kill the process, so the checksum is verified before the
 * loader or the driver sees a file. */
#include "base/checksummed_file.h"

#include <string.h>

#include "base/file.h"
#include "base/sha256.h"

enum { KEY = 64, SUM = 64, MARK = 8 };
_Static_assert(KEY + SUM + MARK == CHECKSUM_TRAILER_BYTES, "the parts of a trailer");

static void
checksum(const void *data, size_t n, const char *key, char hex[65])
{
	Sha256 sum;

	sha256_init(&sum);
	sha256_add(&sum, data, n);
	sha256_add(&sum, key, KEY);
	sha256_hex(&sum, hex);
}

void
checksum_trailer_make(char trailer[CHECKSUM_TRAILER_BYTES], const char mark[8], const char *key,
                      const void *data, size_t n)
{
	char hex[65];

	checksum(data, n, key, hex);
	memcpy(trailer, key, KEY);
	memcpy(trailer + KEY, hex, SUM);
	memcpy(trailer + KEY + SUM, mark, MARK);
}

llmc_status
checksum_trailer_check(const char *path, const char mark[8], const char *key, const void *data,
                       size_t size, size_t *n, llmc_error *err)
{
	char hex[65];

	*n = size > CHECKSUM_TRAILER_BYTES ? size - CHECKSUM_TRAILER_BYTES : 0;
	const char *trailer = *n ? (const char *)data + *n : NULL; /* an empty file has no data */
	bool whole = *n && !memcmp(trailer + KEY + SUM, mark, MARK);
	if (whole) {
		checksum(data, *n, trailer, hex);
		whole = !memcmp(trailer + KEY, hex, SUM);
	}
	if (!whole)
		return error_set(err, LLMC_E_CHECK, "%s: damaged or cut off", path);
	if (memcmp(trailer, key, KEY))
		return error_set(err, LLMC_E_CHECK, "%s: built from another source", path);
	return LLMC_OK;
}

llmc_status
checked_read(const char *path, const char mark[8], const char *key, Strbuf *out, llmc_error *err)
{
	FileMap m;
	size_t n;

	if (!file_exists(path))
		return error_set(err, LLMC_E_IO, "%s: no such file", path);
	if (file_check_trusted(path, err) != LLMC_OK)
		return LLMC_E_INPUT;
	TRY(file_map(path, &m, err));
	llmc_status status = checksum_trailer_check(path, mark, key, m.data, m.size, &n, err);
	if (status == LLMC_OK && out) {
		strbuf_clear(out);
		strbuf_add(out, m.data, n);
		if (out->failed)
			status = error_set(err, LLMC_E_MEMORY, "%s: out of memory", path);
	}
	file_unmap(&m);
	return status;
}

llmc_status
checked_write(const char *path, const char mark[8], const char *key, const void *data, size_t n,
              llmc_error *err)
{
	Strbuf all = { 0 };
	char trailer[CHECKSUM_TRAILER_BYTES];
	llmc_status status;

	checksum_trailer_make(trailer, mark, key, data, n);
	strbuf_add(&all, data, n);
	strbuf_add(&all, trailer, sizeof trailer);
	status = all.failed ? error_set(err, LLMC_E_MEMORY, "%s: out of memory", path)
	                    : file_write(path, all.data, all.len, err);
	strbuf_release(&all);
	return status;
}
