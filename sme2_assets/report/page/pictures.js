"use strict";
// A picture stands still until it comes into view; then Vega draws it as wide as the page, and it answers.
{
  const options = {
    // Without eval, which the page's policy forbids.
    ast: true,
    renderer: "svg",
    actions: false,
    // A picture that asks for a file asks in vain.
    loader: { load: () => Promise.reject(new Error("pictures load nothing")) },
  };
  const fit = (view, box) => view.signal("narrow", box.clientWidth < 560).width(box.clientWidth).runAsync();
  const draw = async (box) => {
    const spec = JSON.parse(box.parentElement.querySelector("script").textContent);
    const still = box.firstElementChild;
    const stage = document.createElement("div");
    try {
      // Outside the page, which would move under the reader's hand if both pictures stood in it.
      const { view } = await vegaEmbed(stage, { ...spec, width: box.clientWidth }, options);
      await fit(view, box);
      still.replaceWith(stage);
      let width = box.clientWidth;
      new ResizeObserver(() => {
        if (box.clientWidth === width) return;
        width = box.clientWidth;
        fit(view, box);
      }).observe(box);
      box.dataset.drawn = "";
    } catch (error) {
      // What stood still is still there.
      console.error(error);
    }
  };
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries.filter((each) => each.isIntersecting)) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: "400px" },
  );
  for (const box of document.querySelectorAll(".picture")) seen.observe(box);
}
