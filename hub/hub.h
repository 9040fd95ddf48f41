/* Models by name: parses a name, finds the model in the cache of Hugging Face, and downloads
 * missing files.
 *
 * The cache is that of huggingface_hub, and both programs read and write the same files:
 *
 *   models--ORG--REPO/blobs/<oid>            content; <oid> is the SHA-256 or the id of the git
 *                                            blob
 *   models--ORG--REPO/blobs/<oid>.incomplete the first bytes of a download that stopped
 *   models--ORG--REPO/snapshots/<commit>/    the repository's paths, as links to blobs
 *   models--ORG--REPO/refs/<revision>        commit of a branch or tag
 *   models--ORG--REPO/trees/<commit>.json    files of a commit, their sizes and ids
 *   .locks/models--ORG--REPO/<oid>.lock      flock of the process that downloads a blob
 *
 * A blob gets its name after its size and hash have been checked. A ref is written after all files
 * of its snapshot are complete, so a stopped download leaves the model that was there before.
 *
 * Data from servers is untrusted: paths, ids and commits are checked before they become names of
 * files. The access token is sent to the configured endpoint only. */
#ifndef LLMC_HUB_H
#define LLMC_HUB_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "hub/curl_abi.h"

/* ---- names.c ---- */

typedef struct HubName {
	const char *text;     /* the name as given */
	const char *url;      /* address of a file; NULL: a repository */
	const char *repo;     /* "ORG/REPO", or "REPO" */
	const char *revision; /* branch, tag or commit */
	const char *want;     /* quantisation or file; NULL: the default */
} HubName;

/* True for hf:..., https://..., http://..., hf.co/... and huggingface.co/... */
bool hub_is_name(const char *s);
/* Parse a name. An address below `endpoint` that names a repository or one of its files becomes a
 * repository. */
llmc_status hub_name_parse(const char *text, const char *endpoint, Arena *a, HubName *out,
                           llmc_error *err);
/* True if a path from a server stays below the folder that it is appended to, and has no characters
 * that control a terminal. */
bool hub_path_is_safe(const char *path);
bool hub_is_hex(const char *s, size_t n); /* exactly n lower-case hexadecimal digits */
/* Append s with all bytes percent-encoded that have a meaning in a URL; keep_slash: except '/' */
void hub_url_add(Strbuf *b, const char *s, bool keep_slash);
/* Return the file name at the end of a URL's path, decoded; NULL: none, or not a safe name. */
const char *hub_url_file(const char *url, Arena *a);

/* ---- environment.c ---- */

typedef struct HubConfig {
	const char *endpoint;         /* without a slash at the end */
	const char *cache;            /* cache of Hugging Face */
	const char *downloads;        /* folder of files that were downloaded from URLs */
	const char *token;            /* NULL: none */
	const char *token_from;       /* "HF_TOKEN", or the path of the file */
	const char *ca_file, *ca_dir; /* NULL: libcurl's own */
	bool offline;
	long stall_s; /* seconds without a byte after which a request is repeated */
} HubConfig;

llmc_status hub_config_read(HubConfig *c, Arena *a, llmc_error *err);

/* ---- tree.c ---- */

typedef struct HubFile {
	const char *path;
	int64_t size;
	const char *oid;    /* id of the git blob, 40 digits; NULL: unknown */
	const char *sha256; /* SHA-256 of the content, 64 digits; NULL: not an LFS file */
	const char *xet;    /* hash of Xet storage, kept for huggingface_hub; NULL: none */
} HubFile;
/* Limit of the size of a file, so that the sum over a repository fits int64_t. */
#define HUB_MAX_FILE_BYTES ((int64_t)1 << 42)
typedef struct HubTree {
	HubFile *file;
	size_t n, cap;
	bool partial; /* the list has only the files of a snapshot: the repository may have more */
} HubTree;

void hub_tree_add(HubTree *t, HubFile f, Arena *a);
/* Append the files of one page of the Hub's tree listing. Files whose path is not safe are an
 * error. */
llmc_status hub_tree_parse(HubTree *t, const char *json, size_t n, Arena *a, llmc_error *err);
/* trees/<commit>.json */
llmc_status hub_tree_load(HubTree *t, const char *path, Arena *a, llmc_error *err);
/* E_INPUT: two files have one path. */
llmc_status hub_tree_check(const HubTree *t, Arena *a, llmc_error *err);
llmc_status hub_tree_save(const HubTree *t, const char *path, llmc_error *err);
const HubFile *hub_tree_find(const HubTree *t, const char *path);

/* ---- select.c ---- */

/* Files of a model to download. `main` is the file to open, relative to the snapshot; "": the
 * folder. */
typedef struct HubChoice {
	const HubFile **file;
	size_t n, cap;
	const char *main;
	/* vision tower of a GGUF model, one of `file`; NULL: there is none in its folder or above.
	 * The choice counts as complete without it */
	const HubFile *mmproj;
	bool whole; /* all weights are there, as far as the names of files show */
} HubChoice;

/* One GGUF model of a repository, in one or several parts */
typedef struct HubGguf {
	const char *stem;           /* path without part number and suffix */
	char tag[48];               /* "Q4_K_M"; "": none in the name */
	const HubFile *const *part; /* in the order of their paths */
	const HubFile *first;       /* the part that comes first in the list of files */
	/* n_part: parts in the list; count: number of parts that the names state */
	int n_part, count;
	int64_t bytes;
} HubGguf;

/* Choose the files that `want` names (NULL: the default). The order is that of the loader: first
 * safetensors, then pickled weights, then GGUF. E_INPUT: there is no such quantisation or file; the
 * message lists the existing ones. */
llmc_status hub_choose(const HubTree *t, const HubName *name, Arena *a, HubChoice *out,
                       llmc_error *err);
/* Group the GGUF files of a repository, without projectors of images and importance matrices. */
HubGguf *hub_ggufs(const HubTree *t, Arena *a, size_t *n);
/* Files of a folder: configuration, tokenizer and weights. n 0: not a folder that llmc reads. */
void hub_choose_folder(const HubTree *t, Arena *a, HubChoice *out);

/* ---- curl.c, http.c ---- */

typedef struct Hub {
	Arena *a;
	HubConfig cfg;
	CurlCalls curl; /* usable after hub_curl_open */
	bool curl_open;
	bool (*progress)(void *user, const llmc_pull_state *st);
	void *user;
	llmc_pull_state state;
	bool cancelled;
} Hub;

/* Open libcurl once. E_MISSING: it is not installed. */
llmc_status hub_curl_open(Hub *h, llmc_error *err);

/* Headers of a response */
typedef struct HubAnswer {
	long status;
	char etag[256], linked_etag[256], error_code[64], error_message[400], link[4096],
	    content_range[96], retry_after[64];
	bool link_cut; /* the Link header was too long and is truncated */
} HubAnswer;
/* One request. `head` is filled while it runs. */
typedef struct HubRequest {
	void *easy, *headers;
	HubAnswer head;
	char why[CURL_ERROR_SIZE];
} HubRequest;

typedef enum HubVerdict { HTTP_DONE, HTTP_REDIRECT, HTTP_AGAIN, HTTP_FAILED } HubVerdict;

enum { HTTP_TRIES = 4, HTTP_REDIRECTS = 8 };

/* Set up a request that neither follows redirects nor sends the token to another host. extra: an
 * additional header; may be NULL. */
llmc_status http_prepare(Hub *h, HubRequest *r, const char *url, const char *extra,
                         llmc_error *err);
void http_close(Hub *h, HubRequest *r);
/* Decide how to continue after a request has ended; code: libcurl's result. tries: requests without
 * progress so far. *wait_s: seconds before the next try. HTTP_FAILED: *err is set. */
HubVerdict http_verdict(Hub *h, HubRequest *r, int code, const char *url, int tries,
                        bool progressed, double *wait_s, llmc_error *err);
/* True if an answer from `from` may send this client to the address `to`: https does not become
 * http, and no other protocol is used. */
bool http_may_follow(const char *from, const char *to);
/* Return the address that a redirect leads to; fails if the redirect is not allowed. */
llmc_status http_redirect(Hub *h, HubRequest *r, const char *from, const char **to,
                          llmc_error *err);
/* GET into memory, at most max_bytes. *head: the headers of the response. Follows redirects and
 * retries. */
llmc_status http_get(Hub *h, const char *url, size_t max_bytes, Strbuf *out, HubAnswer *head,
                     llmc_error *err);
/* fetch.c: GET into memory for llmc_fetch; all options are set. */
llmc_status hub_fetch(Hub *h, const char *url, const llmc_fetch_options *opt, Strbuf *out,
                      llmc_error *err);
/* Check a URL against a list of hosts. *exact: the list names its numeric address. */
llmc_status fetch_check_url(const char *url, const char *hosts, bool *exact, llmc_error *err);
struct sockaddr;
bool fetch_is_public(const struct sockaddr *a);
bool http_same_origin(const char *url, const char *endpoint);
/* Return the target of rel="next" in a Link header; NULL: none. */
const char *http_next_link(const char *link, Arena *a);
/* Parse "bytes 5-9/10"; total -1: not stated. */
bool http_content_range(const char *s, int64_t *first, int64_t *total);
/* Wait, and report progress meanwhile. E_CANCELLED: the caller stopped it. */
llmc_status hub_wait(Hub *h, double seconds, llmc_error *err);
/* Call the progress function; false: the caller wants to stop. */
bool hub_report(Hub *h, const char *file, int64_t file_bytes, const char *note);
llmc_status hub_cancelled(llmc_error *err);

/* ---- sha1.c ---- */

typedef struct Sha1 {
	uint32_t h[5];
	uint64_t n_bytes;
	uint8_t block[64];
} Sha1;
void sha1_init(Sha1 *s);
void sha1_add(Sha1 *s, const void *data, size_t n);
void sha1_hex(Sha1 *s, char hex[41]); /* finalises */

/* ---- download.c ---- */

/* One file to download */
typedef struct HubPart {
	const char *url, *name; /* name: in messages and progress */
	const char *dest;       /* final path; the part is dest + ".incomplete" */
	const char *lock;       /* path of the lock file */
	int64_t size;           /* -1: unknown */
	const char *sha256;     /* NULL: not known */
	const char *git_oid;    /* NULL: not known */
	/* file with the ETag of dest and of its part, if the hash of the content is unknown; else
	 * NULL */
	const char *etag_file;
	const char *link; /* path in the snapshot that becomes a link to dest; NULL: none */
	bool update;      /* dest exists: replace it if the server has another version */
} HubPart;

/* Download parts, several at a time. Progress is counted in h->state, whose totals the caller has
 * set. */
llmc_status hub_download(Hub *h, HubPart *p, size_t n, llmc_error *err);

/* ---- snapshot.c ---- */

typedef struct HubRepo {
	const char *folder; /* models--ORG--REPO */
	const char *name;   /* its last part */
} HubRepo;
HubRepo hub_repo(const Hub *h, const char *repo);
/* Commit that refs/<revision> holds, or the revision itself if it is a commit; NULL: unknown */
const char *hub_commit_of(const HubRepo *r, const char *revision, Arena *a);
const char *hub_snapshot(const HubRepo *r, const char *commit, Arena *a);
/* Get the file list of a commit, as far as the cache has it. False: there is no such snapshot. */
bool hub_local_tree(const HubRepo *r, const char *commit, HubTree *out, Arena *a);
bool hub_file_is_here(const HubRepo *r, const char *commit, const HubFile *f, Arena *a);
/* Make `link` a relative link to the blob, or a hard link on file systems without symbolic
 * links. */
llmc_status hub_link(const char *blob, const char *link, Arena *a, llmc_error *err);
llmc_status hub_ref_write(const HubRepo *r, const char *revision, const char *commit, Arena *a,
                          llmc_error *err);

/* ---- pull.c, pull_url.c, store.c ---- */

/* Make the model of a name available and set *path to the file or folder to open. update: look for
 * a newer revision on the server. */
llmc_status hub_pull(Hub *h, const HubName *name, bool update, const char **path, llmc_error *err);
llmc_status hub_pull_url(Hub *h, const HubName *name, bool update, const char **path,
                         llmc_error *err);
const char *hub_url_folder(Hub *h, const HubName *name);
/* Append a JSON array of the models in the caches. */
llmc_status hub_list(Hub *h, Strbuf *out, llmc_error *err);
/* Remove a model and the blobs that no other model uses. */
llmc_status hub_remove(Hub *h, const HubName *name, int64_t *freed, llmc_error *err);

#endif
