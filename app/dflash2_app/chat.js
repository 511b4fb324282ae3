// What the chat does without the server: copying, keys, links, and staying at the end of a growing answer.
window.dflashCopy = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard outside of secure contexts, such as a plain address in the local network.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
};

window.dflashFollowEnd = (turns) => {
  const atEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
  let follow = true;
  // Only a scroll towards the beginning leaves the end: growing content scrolls nothing.
  let before = scrollY;
  addEventListener("scroll", () => {
    follow = scrollY < before ? atEnd() : follow || atEnd();
    before = scrollY;
  }, { passive: true });
  const toEnd = () => follow && scrollTo(0, document.documentElement.scrollHeight);
  new MutationObserver(toEnd).observe(turns, { childList: true, subtree: true, characterData: true });
  toEnd();
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector(".q-dialog, .q-menu")) {
    document.querySelector("[data-testid=stop]:not([disabled])")?.click();
  }
});

// A link of a model's never takes the page's place.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.(".answer a[href]");
  if (link) {
    event.preventDefault();
    window.open(link.href, "_blank", "noopener,noreferrer");
  }
});
