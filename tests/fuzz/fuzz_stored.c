/* Arbitrary bytes as a file that llmc stored or that an operator wrote. The first byte selects the
 * reader: keys, imatrix, GGUF in two parts, checksummed file, prefix page, packed weights. For
 * files with checksums, the second byte selects the checksums that are corrected, so that the input
 * reaches the checks after them. */
#include <stddef.h>

#include "base/checksummed_file.h"
#include "base/sha256.h"
#include "base/sum64.h"
#include "formats/gguf.h"
#include "quant/imatrix.h"
#include "runtime/kv/kv_disk.h"
#include "runtime/threads/threads.h"
#include "runtime/weights/pack_cache_internal.h"
#include "serve/http/api_keys.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "fuzz_stored: %s\n", what);
		abort();
	}
}

static void
keys(const uint8_t *data, size_t size)
{
	Keys *k = NULL;
	llmc_error err = { 0 };
	Problem p = { 0 };

	llmc_status status = keys_open(folder_put("keys", data, size), &k, &err);
	check(status == LLMC_OK || (!k && err.text[0]), "keys: refused without a message");
	for (ApiKey *one = k ? k->first : NULL; one; one = one->next) {
		check(keys_find(k, one->text) != NULL, "keys: a key is not found");
		if (key_take(one, 1, &p))
			key_give(one, 1);
	}
	keys_close(k);
}

static void
imatrix(const uint8_t *data, size_t size)
{
	Arena a;
	Imatrix m = { 0 };
	llmc_error err = { 0 };
	static volatile float sum;

	arena_init(&a);
	if (!setjmp(a.oom) &&
	    imatrix_read(folder_put("m.dat", data, size), &a, &m, &err) == LLMC_OK)
		for (size_t i = 0; i < m.n; i++)
			for (int64_t k = 0; k < m.entry[i].cols * m.entry[i].n_mat; k++)
				sum = m.entry[i].mean[k];
	(void)sum;
	arena_release(&a);
}

static void
split_gguf(const uint8_t *data, size_t size)
{
	const uint8_t *first;
	size_t n = part(&data, &size, &first);
	Gguf *g = NULL;
	llmc_error err = { 0 };

	folder_put("m-00002-of-00002.gguf", data, size);
	llmc_status status = gguf_open(folder_put("m-00001-of-00002.gguf", first, n), &g, &err);
	check(status == LLMC_OK || (!g && err.text[0] && status != LLMC_E_BUG),
	      "split GGUF: refused without a message");
	gguf_close(g);
}

static void
checksummed(const uint8_t *data, size_t size, int fit)
{
	static const char mark[8] = "llmc fz1";
	char key[65], *all = calloc(1, size + CHECKSUM_TRAILER_BYTES);
	Strbuf out = { 0 };
	llmc_error err = { 0 };

	memset(key, 'a', 64);
	key[64] = 0;
	memcpy(all, data, size);
	if (fit & 1)
		checksum_trailer_make(all + size, mark, key, all, size);
	if (fit & 2) /* also corrects the checksum of the second key */
		all[size ? size - 1 : 0] ^= 1;
	size_t n = fit & 1 ? size + CHECKSUM_TRAILER_BYTES : size;
	llmc_status status = checked_read(folder_put("checksummed", all, n), mark, key, &out, &err);
	check(status == LLMC_OK ? out.len + CHECKSUM_TRAILER_BYTES == n : err.text[0] != 0,
	      "checksummed file: wrong contents, or refused without a message");
	check((fit & 3) != 1 || !size || status == LLMC_OK,
	      "checksummed file: a whole one is refused");
	strbuf_release(&out);
	free(all);
}

enum { PAGE_BYTES = 64, HEAD = 8 + 64 + 4 * PLAN_KV_PAGE + 24 };

static void
prefix_page(const uint8_t *data, size_t size, int fit)
{
	int32_t tok[PLAN_KV_PAGE];
	uint8_t file[HEAD + PAGE_BYTES + 64] = { 0 }, values[PAGE_BYTES];
	uint64_t bytes = PAGE_BYTES, sum;
	KvDisk *d;
	char name[80];

	if (kv_disk_open(folder, 1 << 20, "root", PAGE_BYTES, NULL, NULL, &d, NULL) != LLMC_OK)
		abort();
	for (int i = 0; i < PLAN_KV_PAGE; i++)
		tok[i] = i;
	KvKey key = kv_disk_root(d, 0);
	kv_disk_next(&key, tok);
	size = size < sizeof file ? size : sizeof file;
	memcpy(file, data, size);
	if (fit & 1) {
		memcpy(file, "llmckvp", 8);
		memcpy(file + 8, key.hex, 64);
	}
	if (fit & 2)
		memcpy(file + 72, tok, sizeof tok);
	if (fit & 4) {
		sum = sum64(file + HEAD, PAGE_BYTES, 1);
		memcpy(file + HEAD - 24, &bytes, 8);
		memcpy(file + HEAD - 16, &sum, 8);
	}
	if (fit & 8) {
		sum = sum64(file, HEAD - 8, 3);
		memcpy(file + HEAD - 8, &sum, 8);
	}
	snprintf(name, sizeof name, "%s.kv", key.hex);
	size_t n = fit & 16 ? HEAD + PAGE_BYTES : size;
	folder_put(name, file, n);
	bool got = kv_disk_load(d, &key, tok, values);
	check(!got ||
	          (!memcmp(values, file + HEAD, PAGE_BYTES) && !memcmp(file + 72, tok, sizeof tok)),
	      "prefix page: another page's values");
	kv_disk_close(d);
}

/* Reads packed weights of 96 bytes, once into memory and once mapped. */
static void
packed(const uint8_t *data, size_t size, int fit)
{
	enum { BYTES = 96 };
	static uint8_t file[PACK_DATA_AT + BYTES + 1];
	static Threads *threads;
	char hex[65], values[BYTES], name[200];
	size_t head = size < sizeof(PackHeader) ? size : sizeof(PackHeader),
	       n = fit & 8 ? size * 17 % sizeof file : PACK_DATA_AT + BYTES;
	bool found = false;
	FileMap map;
	llmc_error err = { 0 };

	if (!threads && threads_open(1, &threads, &err) != LLMC_OK)
		abort();
	memset(hex, '5', 64);
	hex[64] = 0;
	memset(file, fit, sizeof file);
	if (fit & 1) {
		uint64_t sum = fit & 2 ? pack_sum(file + PACK_DATA_AT, BYTES, threads) : 7;
		pack_header((PackHeader *)(void *)file, hex, BYTES, sum);
	}
	if (fit & 4)
		for (size_t i = 0; i < head; i++)
			file[i] ^= data[i];
	setenv("LLMC_CACHE", folder, 1);
	snprintf(name, sizeof name, "%s/weights/%s", folder, hex);
	if (file_mkdirs_private(name, &err) != LLMC_OK)
		abort();
	strcat(name, "/packed");
	if (file_write(name, file, n, &err) != LLMC_OK)
		abort();
	bool whole = (fit & 3) == 3 && n == PACK_DATA_AT + BYTES;
	for (size_t i = 0; i < head && fit & 4; i++)
		whole = whole && !data[i];
	llmc_status status = pack_cache_read(hex, BYTES, threads, values, &found, &err);
	check(found == whole && (status == LLMC_OK) == whole, "packed weights, read");
	check(!found || !memcmp(values, file + PACK_DATA_AT, BYTES), "packed weights: others");
	for (int writable = 0; writable < 2; writable++) {
		status = pack_cache_map(hex, BYTES, writable, threads, &map, &err);
		check((status == LLMC_OK && map.data) == whole, "packed weights, mapped");
		check(whole || err.text[0], "packed weights: refused without a message");
		if (status == LLMC_OK && map.data)
			file_unmap(&map);
	}
	name[strlen(folder) + strlen("/weights")] = 0;
	file_remove_tree(name);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	folder_make();
	folder_clear();
	switch (data[0] % 6) {
	case 0:
		keys(data + 2, size - 2);
		break;
	case 1:
		imatrix(data + 2, size - 2);
		break;
	case 2:
		split_gguf(data + 2, size - 2);
		break;
	case 3:
		checksummed(data + 2, size - 2, data[1]);
		break;
	case 5:
		packed(data + 2, size - 2, data[1]);
		break;
	default:
		prefix_page(data + 2, size - 2, data[1]);
	}
	return 0;
}
