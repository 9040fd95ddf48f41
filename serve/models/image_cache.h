/* Images that a model's vision tower has read, kept for later requests: each turn of a chat sends
 * all images again. The least recently used ones are dropped. */
#ifndef LLMC_SERVE_MODELS_IMAGE_CACHE_H
#define LLMC_SERVE_MODELS_IMAGE_CACHE_H

#include <stdint.h>

#include "llmc.h"

typedef struct ImageCache ImageCache;
typedef struct KeptImage KeptImage;

ImageCache *image_cache_open(int64_t max_bytes); /* NULL: out of memory */
void image_cache_close(ImageCache *c);           /* no image of it is in use any more */
/* Find an image by a hash, 64 hexadecimal digits, and take a reference; NULL: it is not there. */
KeptImage *image_cache_find(ImageCache *c, const char *hash);
/* Add an image of so many bytes, which the cache then owns, and take a reference. NULL: out of
 * memory; the image still belongs to the caller. */
KeptImage *image_cache_add(ImageCache *c, const char *hash, llmc_tower_image *im, int64_t bytes);
void image_cache_unref(ImageCache *c, KeptImage *k);
const llmc_tower_image *kept_image(const KeptImage *k);
#endif
