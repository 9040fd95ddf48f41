/* A built file that was cut off, damaged or made from something else is found before the loader or the driver sees it (a
 * truncated object may well kill the process that maps it), and two processes that build the same one cannot mix theirs up. */
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "runtime/build/build.h"

enum { KEY = 64, SUM = 64, MARK = 8, SEAL = KEY + SUM + MARK };

static void
checksum(const void *data, size_t n, const char *key, char hex[65])
{
	Sha256 sum;

	sha256_init(&sum);
	sha256_add(&sum, data, n);
	sha256_add(&sum, key, KEY);
	sha256_hex(&sum, hex);
}

llmc_status
sealed_read(const char *path, const char mark[8], const char *key, Strbuf *out, llmc_error *err)
{
	FileMap m;
	char hex[65];

	if (!file_exists(path))
		return error_set(err, LLMC_E_IO, "%s: no such file", path);
	if (file_check_trusted(path, err) != LLMC_OK)
		return LLMC_E_INPUT;
	TRY(file_map(path, &m, err));
	size_t n = m.size > SEAL ? m.size - SEAL : 0;
	const char *seal = (const char *)m.data + n;
	bool whole = n && !memcmp(seal + KEY + SUM, mark, MARK);
	if (whole) {
		checksum(m.data, n, seal, hex);
		whole = !memcmp(seal + KEY, hex, SUM);
	}
	bool ours = whole && !memcmp(seal, key, KEY);
	if (ours && out) {
		strbuf_clear(out);
		strbuf_add(out, m.data, n);
	}
	file_unmap(&m);
	if (!whole)
		return error_set(err, LLMC_E_CHECK, "%s: damaged or cut off", path);
	if (!ours)
		return error_set(err, LLMC_E_CHECK, "%s: built from another source", path);
	return out && out->failed ? error_set(err, LLMC_E_MEMORY, "%s: out of memory", path) : LLMC_OK;
}

llmc_status
sealed_write(const char *path, const char mark[8], const char *key, const void *data, size_t n, llmc_error *err)
{
	Strbuf all = { 0 };
	char hex[65];
	llmc_status status;

	checksum(data, n, key, hex);
	strbuf_add(&all, data, n);
	strbuf_add(&all, key, KEY);
	strbuf_add(&all, hex, SUM);
	strbuf_add(&all, mark, MARK);
	status = all.failed ? error_set(err, LLMC_E_MEMORY, "%s: out of memory", path) : file_write(path, all.data, all.len, err);
	strbuf_release(&all);
	return status;
}
