/* Images that a model's vision tower has read, kept for later requests, because each turn of a chat
 * sends all images again. The least recently used images are dropped. */
#ifndef LLMC_SERVE_MODELS_IMAGE_CACHE_H
#define LLMC_SERVE_MODELS_IMAGE_CACHE_H

#include <stdint.h>

#include "llmc.h"

typedef struct ImageCache ImageCache;
typedef struct KeptImage KeptImage;

ImageCache *image_cache_open(int64_t max_bytes); /* NULL: out of memory */
void image_cache_close(ImageCache *c);           /* call when no image of the cache is in use */
/* Find an image by a hash, 64 hexadecimal digits, and take a reference; NULL: it is not there. */
KeptImage *image_cache_find(ImageCache *c, const char *hash);
/* Add an image of `bytes` bytes, which the cache owns from then on, and take a reference. NULL: out
 * of memory; the image still belongs to the caller. */
KeptImage *image_cache_add(ImageCache *c, const char *hash, llmc_tower_image *im, int64_t bytes);
void image_cache_unref(ImageCache *c, KeptImage *k);
const llmc_tower_image *kept_image(const KeptImage *k);
#endif
