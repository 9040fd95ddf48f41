/* Images of kernels as files: the image, then the key of its source, a checksum of both, and a mark. A file that was cut
 * off, damaged or made from something else is found before the driver sees it. */
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "runtime/cuda/cuda.h"

enum { MAX_IMAGE = 1 << 28 };
static const char mark[8] = "llmc cu1";
enum { SEAL_BYTES = 64 + 64 + sizeof mark };

static void
checksum(const void *data, size_t n, const char *key, char hex[65])
{
	Sha256 sum;

	sha256_init(&sum);
	sha256_add(&sum, data, n);
	sha256_add(&sum, key, 64);
	sha256_hex(&sum, hex);
}

llmc_status
cubin_read(const char *path, const char *key, Strbuf *image, llmc_error *err)
{
	char hex[65];

	strbuf_clear(image);
	if (!file_exists(path))
		return error_set(err, LLMC_E_IO, "%s: no such file", path);
	if (file_check_trusted(path, err) != LLMC_OK)
		return LLMC_E_INPUT;
	TRY(file_read(path, MAX_IMAGE, image, err));
	if (image->len <= SEAL_BYTES || memcmp(image->data + image->len - sizeof mark, mark, sizeof mark))
		return error_set(err, LLMC_E_CHECK, "%s: damaged or cut off", path);
	size_t n = image->len - SEAL_BYTES;
	checksum(image->data, n, image->data + n, hex);
	if (memcmp(hex, image->data + n + 64, 64))
		return error_set(err, LLMC_E_CHECK, "%s: damaged or cut off", path);
	if (memcmp(image->data + n, key, 64))
		return error_set(err, LLMC_E_CHECK, "%s: built from another source", path);
	image->len = n;
	return LLMC_OK;
}

llmc_status
cubin_write(const char *path, const char *key, const Strbuf *image, llmc_error *err)
{
	Strbuf all = { 0 };
	char hex[65];
	llmc_status status;

	checksum(image->data, image->len, key, hex);
	strbuf_add(&all, image->data, image->len);
	strbuf_add(&all, key, 64);
	strbuf_add(&all, hex, 64);
	strbuf_add(&all, mark, sizeof mark);
	status = all.failed ? error_set(err, LLMC_E_MEMORY, "out of memory") : file_write(path, all.data, all.len, err);
	strbuf_release(&all);
	return status;
}
