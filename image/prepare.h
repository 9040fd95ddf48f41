/* Preprocessing: an image -> rows of patches and the tokens that stand for it. The steps are data,
 * read from the processor's configuration or from the keys of an mmproj GGUF. */
#ifndef LLMC_IMAGE_PREPARE_H
#define LLMC_IMAGE_PREPARE_H

#include <jansson.h>

#include "base/strbuf.h"
#include "formats/gguf.h"
#include "image/image.h"

/* Size of the image before it is cut into tiles or patches */
typedef enum ImageResize {
	IMAGE_RESIZE_NONE,
	IMAGE_RESIZE_FIXED,    /* height x width */
	IMAGE_RESIZE_SHORTEST, /* shorter side = shortest; then a crop of the centre, if any */
	IMAGE_RESIZE_SMART,  /* sides are multiples of `factor`, area in min_pixels .. max_pixels */
	IMAGE_RESIZE_BUDGET, /* multiples of `factor`, the largest of at most max_pixels */
	IMAGE_RESIZE_LONGEST, /* longer side <= longest, sides rounded up to multiples of `factor`
	                       */
	IMAGE_RESIZE_EVEN,    /* longer side = longest, the other one even */
	IMAGE_RESIZE_PATCHES, /* multiples of `factor`, by bisection of the scale (SigLIP 2) */
} ImageResize;

typedef enum ImageTiling {
	IMAGE_TILE_NONE,
	IMAGE_TILE_SPLIT,  /* squares of `tile`, then the whole image (Idefics3, SmolVLM) */
	IMAGE_TILE_ASPECT, /* the grid of min_tiles .. max_tiles with the nearest aspect (InternVL)
	                    */
	IMAGE_TILE_ANYRES, /* the best of `pinpoint`; the whole image comes first (LLaVA-NeXT) */
	IMAGE_TILE_CROPS,  /* crops along the longer side; the whole image comes first (Gemma 3) */
} ImageTiling;

/* Text that replaces the placeholder of the chat template */
typedef enum ImageText {
	IMAGE_TEXT_RUN,   /* before, n times token, after */
	IMAGE_TEXT_ROWS,  /* per row of patches: its tokens and row_end; the last one is `after` */
	IMAGE_TEXT_GRID,  /* per tile: fake, <row_R_col_C>, tokens; the whole image at the end */
	IMAGE_TEXT_CROPS, /* the run per crop, within a sentence (Gemma 3) */
} ImageText;

typedef enum ImageFilter {
	IMAGE_NEAREST,
	IMAGE_BOX,
	IMAGE_BILINEAR,
	IMAGE_HAMMING,
	IMAGE_BICUBIC,
	IMAGE_LANCZOS,
} ImageFilter;

/* Arithmetic of the resampling: both keep 8 bits per channel after each pass and widen the filter
 * when they shrink; they differ in the rounding of weights and in Lanczos, which torch lacks. */
typedef enum ImageBackend { IMAGE_TORCHVISION, IMAGE_PILLOW } ImageBackend;

enum { IMAGE_STRING = 64, IMAGE_PINPOINTS = 64 };

typedef struct ImageRules {
	char name[IMAGE_STRING]; /* class of the processor, or projector type of a GGUF */
	ImageBackend backend;
	bool drop_alpha; /* false: composite on white */

	bool do_resize;
	ImageResize resize;
	ImageFilter filter;
	int32_t height, width, shortest, longest, factor;
	int64_t min_pixels, max_pixels;
	int32_t crop_height, crop_width; /* centre crop, padded with zeros; 0: none */
	bool pad_square; /* pad to a square with the mean before the resize (LLaVA) */

	ImageTiling tiling;
	int32_t tile; /* side in pixels */
	int32_t min_tiles, max_tiles;
	bool thumbnail;     /* the whole image is a tile as well */
	int32_t min_crop;   /* Gemma 3: smallest side of a crop */
	double min_ratio;   /* Gemma 3: aspect ratio from which crops are made */
	int32_t n_pinpoint; /* LLaVA-NeXT: height, width */
	int32_t pinpoint[IMAGE_PINPOINTS][2];

	bool do_rescale, do_normalize;
	double rescale;
	double mean[3], std[3];

	int32_t patch, temporal; /* sides of a patch; copies of the frame in a row */
	int32_t merge;     /* rows of a merge x merge square of patches are adjacent; 1: raster */
	bool channel_last; /* row is [patch, patch, 3]; else [3, temporal, patch, patch] */

	int32_t token_square;    /* patches per token and side; 0: tokens_per_tile */
	int32_t tokens_per_tile; /* fixed count */
	ImageText text;
	char placeholder[IMAGE_STRING]; /* text of the chat template per image */
	char token[IMAGE_STRING];       /* token whose embeddings the tower's rows replace */
	char before[IMAGE_STRING], after[IMAGE_STRING], row_end[IMAGE_STRING];
	char fake[IMAGE_STRING], global[IMAGE_STRING];
} ImageRules;

typedef struct ImageTile {
	int32_t grid_h, grid_w; /* patches */
	int64_t first_row;
} ImageTile;

typedef struct ImageRows {
	float *value;      /* [n_row, row_elems]; NULL after image_measure */
	int64_t n_row;     /* sum of grid_h * grid_w of all tiles */
	int32_t row_elems; /* 3 * temporal * patch * patch */
	int32_t
	    *position; /* [n_row, 2]: y and x of each patch in its tile; NULL after image_measure */
	ImageTile *tile;
	int32_t n_tile;
	int32_t tiles_h, tiles_w; /* grid of the tiles without the whole image; 0: not cut */
	int64_t n_token;          /* rows of the tower's output */
	Strbuf text; /* replaces rules->placeholder; contains rules->token n_token times */
} ImageRows;

/* Read the steps of preprocessor_config.json (NULL: none). processor: processor_config.json,
 * config: config.json; either may be NULL. E_INPUT names a class or key that has no equivalent
 * here. */
llmc_status image_rules_json(const json_t *preprocessor, const json_t *processor,
                             const json_t *config, ImageRules *out, llmc_error *err);
/* Read the keys clip.vision.* of an mmproj GGUF. */
llmc_status image_rules_gguf(const Gguf *mmproj, ImageRules *out, llmc_error *err);

/* Compute sizes, tiles and text for an image of width x height, without pixels. */
llmc_status image_measure(const ImageRules *r, int32_t width, int32_t height, ImageRows *out,
                          llmc_error *err);
/* The same, with rows and positions. Release with image_rows_release. */
llmc_status image_prepare(const ImageRules *r, const ImagePixels *im, ImageRows *out,
                          llmc_error *err);
void image_rows_release(ImageRows *rows);
/* Upper bounds over all images: rows of one tile, rows and tokens of one image. 0: no bound. */
typedef struct ImageBounds {
	int64_t tile_rows, rows, tokens;
} ImageBounds;
ImageBounds image_bounds(const ImageRules *r);

#endif
