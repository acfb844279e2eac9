// Photos are made small here, before they travel: at most 2048 pixels a side, upright, and without what a camera notes
// beside the picture (place, time, device).

const MAX_SIDE = 2048;
const JPEG_QUALITY = 0.88;
const HEIC_HINT = "是 HEIC 格式，这个浏览器打不开。请在 iPhone“设置 › 相机 › 格式”中选“兼容性最佳”后重拍，或先转换为 JPEG。";
const HEIC_BRANDS = new Set(["heic", "heix", "hevc", "hevx", "heim", "heis", "mif1", "msf1"]);

/** A picture that cannot be taken; the message is for people. */
class PhotoError extends Error {}

/** `{url, data, width, height, turn}` of an image file: a blob URL to show, a data URL to send. Throws PhotoError. */
async function takePhoto(file) {
  const image = await openImage(file);
  const scale = Math.min(1, MAX_SIDE / Math.max(image.naturalWidth, image.naturalHeight));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(image.naturalWidth * scale));
  canvas.height = Math.max(1, Math.round(image.naturalHeight * scale));
  const blob = await drawn(canvas, image);
  if (!blob) throw new PhotoError(`${nameOf(file)} 太大，这个浏览器处理不了。`);
  return { url: URL.createObjectURL(blob), data: await dataUrl(blob), width: canvas.width, height: canvas.height, turn: null };
}

/** The image of `file`, turned as its EXIF orientation says: browsers do that since 2020. */
async function openImage(file) {
  const head = new Uint8Array(await file.slice(0, 16).arrayBuffer());
  if (isMarkup(file, head)) throw new PhotoError(`${nameOf(file)} 不是照片。`);
  const image = new Image();
  image.src = URL.createObjectURL(file);
  try {
    await image.decode();
    if (!image.naturalWidth) throw new Error("no size");
    return image;
  } catch {
    throw new PhotoError(`${nameOf(file)} ${isHeic(file, head) ? HEIC_HINT : "不是浏览器能打开的图片，请使用 JPEG、PNG 或 WebP。"}`);
  } finally {
    URL.revokeObjectURL(image.src);
  }
}

function drawn(canvas, image) {
  const context = canvas.getContext("2d");
  if (!context) return null;
  context.fillStyle = "#fff"; // JPEG knows no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", JPEG_QUALITY));
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new PhotoError("照片读不出来，请重新选择。"));
    reader.readAsDataURL(blob);
  });
}

function isHeic(file, head) {
  const brand = String.fromCharCode(...head.slice(4, 12));
  return (brand.startsWith("ftyp") && HEIC_BRANDS.has(brand.slice(4))) || /\.hei[cf]$/i.test(file.name || "");
}

/** SVG and HTML are programs, not photos. */
function isMarkup(file, head) {
  return /svg|xml|html/.test(file.type) || head[0] === 0x3c;
}

function nameOf(file) {
  return `“${file.name || "这张图片"}”`;
}

function forgetPhoto(photo) {
  URL.revokeObjectURL(photo.url);
}
