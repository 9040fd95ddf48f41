/* Images of a chat: parts of messages -> text of the prompt and rows for the engine.
 *
 * Only the image worker (worker_pool.c) decodes images and runs the tower, one image at a time. If
 * a handler on another worker finds an image, it gets PROBLEM_MOVED, and the image worker handles
 * the request again. Images are first decoded for their size alone, so that a prompt that does not
 * fit is refused before the tower runs. */
#ifndef LLMC_SERVE_DIALECTS_CHAT_IMAGES_H
#define LLMC_SERVE_DIALECTS_CHAT_IMAGES_H

#include "serve/models/image_cache.h"
#include "serve/models/model.h"

typedef struct ChatImage {
	unsigned char *data; /* the encoded file; NULL: `kept` has been found */
	size_t n;
	bool low;
	char hash[65];
	KeptImage *kept; /* NULL: the tower has not read it yet */
	char *text;      /* text of the tokens that stand for the image in the prompt */
	char where[96];  /* name of its field in the client's body */
} ChatImage;

typedef struct ChatImages {
	Req *req;      /* request with the images */
	uint64_t salt; /* llmc_request.prefix_salt */
	ChatImage *image;
	size_t n;
	llmc_image_part *part; /* [n] after chat_images_run */
	int64_t n_token;       /* tokens of the prompt that stand for images */
	/* time by which all URLs must have been fetched; 0: no URL has been fetched yet */
	double fetch_until;
} ChatImages;

/* Return an image part of a chat body, for a dialect with a different form of image parts. url: an
 * http(s) or data: URL, or base64 alone. `where` names the field in messages. New reference; NULL:
 * out of memory. */
json_t *image_part_url(const json_t *url, const json_t *detail, const char *where);
json_t *image_part_base64(const json_t *data, const char *where);
bool is_image_part(const json_t *part);
/* Check the number of images of a chat's messages, and that the model reads images. */
bool chat_images_check(const ChatImages *im, ServedModel *model, const json_t *messages,
                       Problem *p);
/* Read an image part of messages; `where` is the field's name, unless the part carries one. */
bool chat_images_add(ChatImages *im, ServedModel *model, const json_t *part, const char *where,
                     Problem *p);
/* Replace the placeholders of a rendered template by the text of the images. *text is malloc'd. */
bool chat_images_place(ChatImages *im, ServedModel *model, char **text, size_t *n, Problem *p);
/* Run the tower over the images, so that `part` can be submitted. */
bool chat_images_run(ChatImages *im, ServedModel *model, Problem *p);
void chat_images_release(ChatImages *im, ServedModel *model);
#endif
