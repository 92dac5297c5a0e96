// Texts in the browser's storage: for good in "localStorage", or for a tab in "sessionStorage". Where the browser has no room
// or does not allow it, they last as long as the page.
const own = new Map();

export function kept(area, key) {
  try {
    return own.get(key) ?? globalThis[area].getItem(key);
  } catch {
    return null;
  }
}

export function keep(area, key, text) {
  own.set(key, text);
  try {
    globalThis[area].setItem(key, text);
    own.delete(key);
  } catch {
    // It is in `own`.
  }
}
